"""A companion: a service beside a run, and how its start is detected.

The flags select the companions of a run, the configuration describes them. Nothing is started here.
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
"""Output of servers that have started, for those without a health URL."""
APPWORLD_URL = "http://127.0.0.1:8080"
APPWORLD_SERVER = Path(__file__).parents[1] / "env_service" / "appworld_server.py"
LOGVIEW_PORT = 8181
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_FLAGS = ("ray", "appworld", "logview")


@dataclass(frozen=True, slots=True)
class CompanionFlags:
    """Companions on the command line: `--with NAME=COMMAND` or `--with NAME`, and the three flags of built-in ones."""

    named: tuple[str, ...] = ()
    ray: bool = False
    appworld: bool = False
    logview: bool = False

    def __bool__(self) -> bool:
        return bool(self.named or self.ray or self.appworld or self.logview)


@dataclass(frozen=True, slots=True)
class Companion:
    """Description of a companion: its command, and how its start is detected.

    `health_url` responds once it has started; without one, its output shows one of `success_messages`. `page` is its
    web page. A run continues without one that is not `needed`. One that already responds is reused, unless it has a
    `port_key`, the configuration key of its port: another server may have other weights.
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
    """Return the companions that the flags request, in start order. Raises ConfigError if a flag is malformed, has an
    unknown name, or a requirement is missing.

    Args:
        record_dir: root folder of runs; by default `config.record_dir`.
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
    """Return the companion with the configuration's settings applied."""
    settings = config.companions.get(companion.name, CompanionConfig())
    if settings.health_url and not re.match(r"(https?|tcp)://[^/]", settings.health_url):
        raise ConfigError(
            f"astune.companions.{companion.name}.health_url is {settings.health_url!r}, which is not an address",
            hint="write http://127.0.0.1:8080/healthz, or tcp://127.0.0.1:6379 for one that only accepts connections",
        )
    own = (settings.success_message,) if settings.success_message else ()
    return replace(
        companion,
        health_url=settings.health_url or companion.health_url,
        success_messages=(*own, *companion.success_messages),
        timeout_s=settings.timeout_s,
    )


def ray_head(config: AstuneConfig) -> Companion:
    """Return a Ray head on this machine; a running one that was started here is reused."""
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
    """Return Ray's command in the folder of that program; not the placeholder of scripts/install.sh."""
    ray = program.parent / "ray"
    return ray if ray.is_file() and b"astune's stand-in" not in ray.read_bytes()[:200] else None


def give_ray_head_a_token() -> None:
    """Set a token so that a Ray head only accepts processes that inherit this environment."""
    if running_ray_head() is None and "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _places_to_compute(engine: str | None) -> tuple[str, ...]:
    """Declare two places without a GPU: one to train on, and one to sample on."""
    if engine is None or shutil.which("nvidia-smi"):
        return ()
    return ("--num-gpus=2", "--num-cpus=16", "--object-store-memory=500000000")


def running_ray_head(temporary: Path | None = None) -> str | None:
    """Return the address of the Ray head last started on this machine, if it still accepts connections."""
    folder = temporary or Path(os.environ.get("RAY_TMPDIR", "/tmp"))
    try:
        address = f"tcp://{(folder / 'ray' / 'ray_current_cluster').read_text().strip()}"
    except OSError:
        return None
    return address if why_not_answering(address) is None else None


def log_viewer(config: AstuneConfig, record_dir: Path) -> Companion:
    """Return the log viewer on a folder of runs; one that already shows this folder is reused."""
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
            f"--with-appworld: APPWORLD_PATH is {environ['APPWORLD_PATH']}, which is not a folder",
            hint="name the folder that holds AppWorld's `data`; see docs/en/appworld.md",
        )
    parts = urlsplit(url)
    arguments = ["--portal", parts.hostname or "127.0.0.1", "--port", str(parts.port or 80)]
    return in_shell(f"{environ['APPWORLD_ACTIVATION']} && exec python {shlex.join([str(APPWORLD_SERVER), *arguments])}")


def in_shell(line: str) -> tuple[str, ...]:
    """Wrap a shell line as a command; bash if available, since activating an environment often needs it."""
    return (shutil.which("bash") or "/bin/sh", "-c", line)
