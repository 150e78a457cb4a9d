"""Files of an episode that stay from one shell command to the next, although the sandbox forgets each call.

A command runs in a folder that is unpacked before it and packed after it, inside of the sandbox; nothing of it is
unpacked outside. Commands at the same time each see the files as they were before, and those of the last one stay.

The packed files follow what the command wrote to its errors, as lines that begin with a mark:

    <mark>H4sIAAAAA        a piece, written at once, so that nothing comes between its characters
    late                   a process in the background may still write between two pieces
    <mark>AAAP8D=
    <mark>:137 2           the end: the command's own exit status, and how many pieces there are
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace

from astune.sandbox import SandboxResult

MOST_KB = 1024
"""Size of the packed files that are kept, with their marks; beyond that, those from before the command stay."""

_PROGRAM = r"""
import base64, io, os, subprocess, sys, tarfile
KEPT = "those from before this command are kept"
os.makedirs("workspace")
script = os.fsencode(command)
words = ["-c", script]
if len(script) >= 1 << 17:  # more than an argument may hold
    with open("command.sh", "wb") as file:
        file.write(script)
    words = ["../command.sh"]
os.chdir("workspace")
if files:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(files)), mode="r:gz") as packed:
        packed.extraction_filter = lambda member, _: member  # all that the agent itself made
        packed.extractall(".")
ended = subprocess.run(["/bin/sh", *words], stdin=subprocess.DEVNULL).returncode
notes, cut_off, packed = [], False, io.BytesIO()
def leave_out(error):
    notes.append(f"{str(error.filename)[:200]}: not kept: {error.strerror or error}")
def members():
    yield "."
    for folder, folders, names in os.walk(".", onerror=leave_out):
        yield from (os.path.join(folder, name) for name in sorted(folders + names))
with tarfile.open(fileobj=packed, mode="w:gz") as tar:
    for path in members():
        begin = tar.offset
        try:
            tar.add(path, recursive=False)
        except OSError as error:
            error.filename = path
            leave_out(error)
            cut_off = cut_off or tar.offset != begin
text = base64.b64encode(packed.getvalue()).decode()
size = 4096 - len(mark) - 1  # a pipe takes up to 4,096 bytes at once
pieces = [f"{mark}{text[at : at + size]}\n" for at in range(0, len(text), size)]
if len(notes) > 10:
    notes[10:] = [f"{len(notes) - 10} more are not kept"]
if cut_off:
    notes.append(f"the files changed while they were packed: {KEPT}")
    pieces = []
elif sum(map(len, pieces)) > most:
    notes.append(f"the files are more than {most >> 10} KB when packed: {KEPT}")
    pieces = []
status = ended if ended >= 0 else 128 - ended
os.set_blocking(2, True)
for line in (*(f"{note}\n" for note in notes), *pieces, f"{mark}:{status} {len(pieces)}\n"):
    os.write(2, line.encode(errors="backslashreplace"))
os._exit(0)
"""


class Workspace:
    """The files of one episode's shell."""

    def __init__(self) -> None:
        self._files = ""

    def program(self, command: str) -> tuple[str, str]:
        """Python that runs a shell command among the files, and the mark of its report."""
        mark = f"<workspace {secrets.token_hex(16)}>"
        given = (self._files, command, mark, MOST_KB << 10)
        return f"files, command, mark, most = {given!r}{_PROGRAM}", mark

    def keep(self, result: SandboxResult, mark: str) -> SandboxResult:
        """Keep the files that a command left, unless it was stopped; returns its result without them."""
        pieces = re.findall(f"{mark}([A-Za-z0-9+/]+=*)\n", result.stderr)
        end = re.search(f"{mark}:([0-9]+) ([0-9]+)\n", result.stderr)
        stderr = re.sub(f"{mark}.*\n?", "", result.stderr)
        if result.ended_by != "exit":
            return replace(result, stderr=stderr)
        if end is None or len(pieces) != int(end[2]):
            return replace(
                result, stderr=f"{stderr}the files cannot be read: those from before this command are kept\n"
            )
        if pieces:
            self._files = "".join(pieces)
        return replace(result, returncode=int(end[1]), stderr=stderr)
