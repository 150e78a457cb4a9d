"""A fresh user's clone: the project's files in a folder of their own, and a shell in it with an AgentScope version."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
from letter_stage import ROOT


@dataclass(frozen=True)
class Done:
    """What a command line did."""

    status: int
    out: str
    seconds: float


@dataclass
class FreshClone:
    """`run` is a line that the user types in the clone's folder; `python` in it is the environment's own."""

    folder: Path
    programs: Path
    """The folder of the environment's `python`, `astune`, ..."""
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, line: str, *, timeout_s: float = 900, **variables: str) -> Done:
        begun = time.monotonic()
        with self.started(line, **variables) as process:
            out, _ = process.communicate(timeout=timeout_s)
        return Done(process.returncode, out, time.monotonic() - begun)

    @contextmanager
    def started(self, line: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """The line while it runs; what is left of it in the end is killed with all that it started."""
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.folder,
            env={**environ, "PATH": f"{self.programs}:{environ['PATH']}", **self.variables, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def copied(folder: Path) -> Path:
    """The files of the working tree that git has or would have, in `folder`."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def programs_with(agentscope: str) -> Path:
    """The `bin` of an environment with that version of AgentScope."""
    made = ROOT / f".venv-agentscope-{agentscope}" / "bin"
    if (made / "python").exists():
        return made
    if version("agentscope") == agentscope:
        return Path(sys.executable).parent
    pytest.skip(f"there is no {made.parent}; scripts/make_peer_env.sh agentscope-{agentscope} makes it")


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=5).is_success
    except httpx.HTTPError:
        return False
