"""A companion: a service that a run needs beside it, and how it is known that it has started.

The flags say which companions a run has, the configuration says what they are. Nothing is started here.
"""

from __future__ import annotations

import difflib
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from astune.config.engine_place import interpreter
from astune.config.schema import AstuneConfig, CompanionConfig
from astune.launcher.health import why_not_answering
from astune.schema import ConfigError

SUCCESS_MESSAGES = (
    "Uvicorn running on",
    "Application startup complete",
    "Starting server on",
    "Ray runtime started",
    "Serving HTTP on",
)
"""What servers write once they have started, where there is no address to ask."""
APPWORLD_URL = "http://127.0.0.1:8080"
APPWORLD_SERVER = Path(__file__).parents[1] / "env_service" / "appworld_server.py"
LOGVIEW_PORT = 8181
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_FLAGS = ("ray", "appworld", "logview")


@dataclass(frozen=True, slots=True)
class CompanionFlags:
    """What the command line asks for: `--with NAME=COMMAND` or `--with NAME`, and the three flags of known ones."""

    named: tuple[str, ...] = ()
    ray: bool = False
    appworld: bool = False
    logview: bool = False

    def __bool__(self) -> bool:
        return bool(self.named or self.ray or self.appworld or self.logview)


@dataclass(frozen=True, slots=True)
class Companion:
    """What is started and how one sees that it has.

    `health_url` answers once it has; without one, its output shows one of `success_messages`. `page` is where people
    look at it. A run goes on without one that is not `needed`. One that answers already is used as it is, unless it has
    a `port_key`, the configuration's key of its port: whose weights another server has, its name does not say.
    """

    name: str
    command: tuple[str, ...]
    health_url: str | None = None
    success_messages: tuple[str, ...] = SUCCESS_MESSAGES
    timeout_s: float = 300.0
    page: str = ""
    needed: bool = True
    port_key: str = ""


def companions_of(flags: CompanionFlags, config: AstuneConfig, record_dir: Path | None = None) -> list[Companion]:
    """The companions that the flags ask for, in the order in which they are started.

    Args:
        record_dir: where the run is recorded; `config.record_dir` where nothing else is said.

    Raises:
        ConfigError: a flag is malformed, names what is not known, or lacks what it needs.
    """
    found: dict[str, Companion] = {}
    for companion in [
        *([ray_head(config)] if flags.ray else []),
        *([appworld(config)] if flags.appworld else []),
        *([log_viewer(config, (record_dir or config.record_dir).resolve())] if flags.logview else []),
        *(_named(text, config) for text in flags.named),
    ]:
        if companion.name in found:
            raise ConfigError(f"two companions are called {companion.name}", hint="give one of them another name")
        found[companion.name] = companion
    return list(found.values())


def _named(text: str, config: AstuneConfig) -> Companion:
    """`NAME=COMMAND`, or the `NAME` of one that the configuration describes."""
    name, equals, command = (part.strip() for part in text.partition("="))
    if not _NAME.fullmatch(name) or (equals and not command):
        raise ConfigError(
            f"--with {shlex.quote(text)} does not have the form NAME=COMMAND",
            hint="for example --with tools='python tools_server.py --port 9000'; a name has letters, digits and ._-",
        )
    known = config.companions.get(name)
    command = command or (known.command if known is not None else "")
    if not command:
        raise ConfigError(_no_command(name, known is not None), hint=_command_hint(name, config))
    return _configured(Companion(name, in_shell(command)), config)


def _no_command(name: str, is_known: bool) -> str:
    if is_known:
        return f"--with {name}: astune.companions.{name} has no command"
    return f"--with {name}: there is no companion called {name}"


def _command_hint(name: str, config: AstuneConfig) -> str:
    if name in _FLAGS:
        return f"did you mean --with-{name}?"
    known = [each for each, entry in config.companions.items() if entry.command]
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean --with {close[0]}?"
    described = f" (the configuration has {', '.join(known)})" if known else ""
    return f"write --with {name}='COMMAND', or describe it in astune.companions.{name}.command{described}"


def _configured(companion: Companion, config: AstuneConfig) -> Companion:
    """The same with what the configuration says of it."""
    settings = config.companions.get(companion.name, CompanionConfig())
    if settings.health_url and not re.match(r"(https?|tcp)://[^/]", settings.health_url):
        raise ConfigError(
            f"astune.companions.{companion.name}.health_url is {settings.health_url!r}, which is no address",
            hint="write http://127.0.0.1:8080/healthz, or tcp://127.0.0.1:6379 for one that only takes connections",
        )
    own = (settings.success_message,) if settings.success_message else ()
    return replace(
        companion,
        health_url=settings.health_url or companion.health_url,
        success_messages=(*own, *companion.success_messages),
        timeout_s=settings.timeout_s,
    )


def ray_head(config: AstuneConfig) -> Companion:
    """A Ray head on this machine; one that was started here before and still answers is asked at its address."""
    engine = config.cluster_engine
    python = sys.executable if engine is None else interpreter(config, engine)
    on_path = shutil.which("ray")
    program = _ray_beside(Path(python)) or (_ray_beside(Path(on_path)) if on_path else None)
    if program is None:
        raise ConfigError(
            "--with-ray: there is no command `ray`", hint="pip install ray, in the environment that astune runs in"
        )
    command = (str(program), "start", "--head", "--block", "--disable-usage-stats", *_places_to_compute(engine))
    return _configured(Companion("ray", command, health_url=running_ray_head()), config)


def _ray_beside(program: Path) -> Path | None:
    """Ray's command in the folder of that program; not the stand-in that scripts/install.sh puts there."""
    ray = program.parent / "ray"
    return ray if ray.is_file() and b"astune's stand-in" not in ray.read_bytes()[:200] else None


def give_ray_head_a_token() -> None:
    """Have a Ray head that is started next answer only those who inherit this process's environment."""
    if running_ray_head() is None and "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _places_to_compute(engine: str | None) -> tuple[str, ...]:
    """Without a GPU an engine is told of two: one to train on, and one to sample on."""
    if engine is None or shutil.which("nvidia-smi"):
        return ()
    return ("--num-gpus=2", "--num-cpus=16", "--object-store-memory=500000000")


def running_ray_head(temporary: Path | None = None) -> str | None:
    """The address of the Ray head that was last started on this machine, where it still accepts connections."""
    folder = temporary or Path(os.environ.get("RAY_TMPDIR", "/tmp"))
    try:
        address = f"tcp://{(folder / 'ray' / 'ray_current_cluster').read_text().strip()}"
    except OSError:
        return None
    return address if why_not_answering(address) is None else None


def log_viewer(config: AstuneConfig, record_dir: Path) -> Companion:
    """The log viewer on a folder of runs; one that shows this folder already is used as it is."""
    page = f"http://127.0.0.1:{LOGVIEW_PORT}/"
    command = (sys.executable, "-P", "-m", "astune", "view", str(record_dir), "--no-open", "--port", str(LOGVIEW_PORT))
    health_url = f"{page}healthz?folder={quote(str(record_dir))}"
    return _configured(Companion("logview", command, health_url=health_url, page=page, needed=False), config)


def appworld(config: AstuneConfig, environ: Mapping[str, str] = os.environ) -> Companion:
    """AppWorld's environment service, where the configuration looks for it."""
    url = (config.task_reader.env_service.env_url or APPWORLD_URL).rstrip("/")
    command = appworld_command(url, environ)
    return _configured(Companion("appworld", command, health_url=f"{url}/healthz"), config)


def appworld_command(url: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Our server script in AppWorld's own environment, which `APPWORLD_ACTIVATION` activates in that shell."""
    for name, example in (
        ("APPWORLD_PATH", "/data/appworld"),
        ("APPWORLD_ACTIVATION", "'source /data/appworld/.venv/bin/activate'"),
    ):
        if not environ.get(name):
            raise ConfigError(
                f"--with-appworld: {name} is not set",
                hint=f"write {name}={example} into .env, or export it; see docs/en/appworld.md",
            )
    if not Path(environ["APPWORLD_PATH"]).expanduser().is_dir():
        raise ConfigError(
            f"--with-appworld: APPWORLD_PATH is {environ['APPWORLD_PATH']}, which is no folder",
            hint="name the folder that holds AppWorld's `data`; see docs/en/appworld.md",
        )
    parts = urlsplit(url)
    arguments = ["--portal", parts.hostname or "127.0.0.1", "--port", str(parts.port or 80)]
    return in_shell(f"{environ['APPWORLD_ACTIVATION']} && exec python {shlex.join([str(APPWORLD_SERVER), *arguments])}")


def in_shell(line: str) -> tuple[str, ...]:
    """A line for the shell as a command; bash where there is one, since activating an environment often needs it."""
    return (shutil.which("bash") or "/bin/sh", "-c", line)
