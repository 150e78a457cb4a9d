"""The jail that an agent program runs in: the sandbox's walls, and a door to its model's address alone.

What happens inside is in `inside/jail.py`. There is one backend: namespaces, since nothing else closes the network but
for one address. Without them no program is started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from astune.processes.scratch import Scratch
from astune.sandbox._advice import advice_on_namespaces
from astune.sandbox.inside.jail import FAILED
from astune.sandbox.interpreter import command as interpreter
from astune.sandbox.interpreter import environment, is_within, outermost, readable_folders
from astune.schema import SandboxError

_HANDED_ON = ("PATH", "LANG", "LC_ALL", "TZ")
_TRIAL_S = 30.0


@dataclass(frozen=True)
class Jail:
    """A jail for each run of a program.

    Args:
        readable: files and folders that the program may read beside the system's and our interpreter's.
        memory_mb: limit of its folder, which is in memory; its processes are limited by who starts them.
    """

    readable: Sequence[str]
    memory_mb: int

    def command(self, command: Sequence[str], *, url: str, scratch: Path, task: Path) -> list[str]:
        """Return the command that runs `command` in the jail.

        Args:
            url: the model's address, `http://HOST:PORT/...`; inside, its port leads there, at 127.0.0.1.
            scratch: an empty folder of ours that the walls are built on.
            task: the file that the program shall find as `$ASTUNE_TASK`.
        """
        address = urlsplit(url)
        spec = {
            "base": str(scratch),
            "readable": outermost([*readable_folders(), *self.readable]),
            "task": str(task),
            "memory_mb": self.memory_mb,
            "door": [address.hostname, address.port or 80],
        }
        return interpreter("jail", json.dumps(spec), *command)

    def shows(self, path: str) -> bool:
        """Return whether the program can read a file of this path, and what it links to."""
        shown = [*readable_folders(), *self.readable]
        return is_within(path, shown) and is_within(os.path.realpath(path), [*shown, *map(os.path.realpath, shown)])

    def try_out(self) -> None:
        """Run a program that does nothing. Raises SandboxError if this machine lacks what the jail is made of."""
        if sys.platform != "linux":
            raise _not_here("it needs Linux")
        scratch = Scratch("trial")
        try:
            command = self.command(["/bin/true"], url="http://127.0.0.1:1", scratch=scratch.path, task=Path(os.devnull))
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, env=environment(), timeout=_TRIAL_S, check=False
            )
        finally:
            scratch.remove()
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().removeprefix(FAILED)
            raise _not_here(reason)


def _not_here(reason: str) -> SandboxError:
    unconfined = "or run the program with your rights: --set rollout.workflow.sandboxed=false"
    return SandboxError(
        f"the sandbox for programs does not work on this machine: {reason}",
        hint=f"{advice_on_namespaces()}; {unconfined}",
    )


def jailed_environment() -> dict[str, str]:
    """Return what a jailed program inherits of our environment: nothing that may be a secret."""
    return {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
