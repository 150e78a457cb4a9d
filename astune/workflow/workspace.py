"""Files of an episode that stay from one shell command to the next, although the sandbox forgets each call.

A command runs in a folder that is unpacked before it and packed after it, inside of the sandbox; nothing of it is
unpacked outside. Commands at the same time each see the files as they were before, and those of the last one stay.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace

from astune.sandbox import SandboxResult

MOST_KB = 1024
"""Size of the packed files that are kept; beyond that, those from before the command stay."""

_PACKED = re.compile(r"[A-Za-z0-9+/]+=*")
_PROGRAM = """
import base64, io, os, subprocess, sys, tarfile
files, command, mark, most = {files!r}, {command!r}, {mark!r}, {most!r}
os.makedirs("workspace")
os.chdir("workspace")
if files:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(files)), mode="r:gz") as packed:
        packed.extraction_filter = lambda member, _: member  # all that the agent itself made
        packed.extractall(".")
ended = subprocess.run(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL).returncode
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:gz") as tar:
    tar.add(".")
kept = base64.b64encode(packed.getvalue())
os.write(2, mark.encode())
with open(2, "wb") as report:
    report.write(kept if len(kept) <= most else b"-")
os._exit(ended if ended >= 0 else 128 - ended)
"""


class Workspace:
    """The files of one episode's shell."""

    def __init__(self) -> None:
        self._files = ""

    def program(self, command: str) -> tuple[str, str]:
        """Python that runs a shell command among the files, and the mark before the packed files in its errors."""
        mark = f"<workspace {secrets.token_hex(16)}>"
        return _PROGRAM.format(files=self._files, command=command, mark=mark, most=MOST_KB << 10), mark

    def keep(self, result: SandboxResult, mark: str) -> SandboxResult:
        """Keep the files that a command left, unless it was stopped; returns its result without them."""
        stderr, _, files = result.stderr.partition(mark)
        if files == "-":
            stderr += f"the files are more than {MOST_KB} KB when packed: those from before this command are kept\n"
        elif result.ended_by == "exit" and _PACKED.fullmatch(files):
            self._files = files
        return replace(result, stderr=stderr)
