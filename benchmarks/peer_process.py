"""A peer of our engine in a process of its own, asked through its standard input and output, a line of JSON each.

`PeerProcess` is the benchmark's end, `serve` the peer's. It runs in peers' environments too: the standard library only.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

ROOT = Path(__file__).resolve().parent.parent
_READY = b"ready\n"
_LONGEST_LINE = 2**24
_PR_SET_PDEATHSIG = 1


class Drawn(NamedTuple):
    """The tokens of one answer, and the log-probability of each under the distribution that it was drawn from."""

    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Asked:
    """One request: draw `max_tokens` tokens after the prompt at temperature 1, whatever they are."""

    number: int
    prompt: list[int]
    max_tokens: int


class Peer(Protocol):
    @property
    def busy(self) -> bool: ...

    def add(self, asked: Asked) -> None: ...

    def step(self) -> list[tuple[int, Drawn]]:
        """Compute one step of everything added; the answers that it finished, by number."""
        ...


def serve(peer: Peer) -> None:
    """Answer until the standard input ends; requests that arrive meanwhile join the running ones."""
    if sys.platform == "linux":  # a stopped process would outlive a benchmark that is killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    arrived: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            arrived.put(Asked(**json.loads(line)))
        arrived.put(None)

    threading.Thread(target=read, daemon=True).start()
    answers.write(_READY.decode())
    answers.flush()
    while True:
        while not peer.busy or not arrived.empty():
            asked = arrived.get()
            if asked is None:
                return
            peer.add(asked)
        for number, drawn in peer.step():
            answers.write(json.dumps({"number": number, **drawn._asdict()}) + "\n")
        answers.flush()


class PeerProcess:
    """`async with PeerProcess(command) as peer:` is a peer that answers; leaving the block ends it."""

    def __init__(self, *command: str | Path) -> None:
        self._command = [str(part) for part in command]
        self._answers: dict[int, asyncio.Future[Drawn]] = {}
        self._asked = 0
        self._log = Path(tempfile.mkstemp(prefix="peer-", suffix=".log")[1])

    async def __aenter__(self) -> PeerProcess:
        pipe = asyncio.subprocess.PIPE
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=ROOT,
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                limit=_LONGEST_LINE,
                start_new_session=True,
            )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("a peer has no pipes")
        self._requests, self._lines = self._process.stdin, self._process.stdout
        if await self._lines.readline() != _READY:
            await self._process.wait()
            raise self._error()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._requests.close()
        await self._process.wait()
        await self._reading
        self._log.unlink()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Nothing of it computes inside this block; threads may spin for a while after a request."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    async def generate(self, prompt: list[int], max_tokens: int) -> Drawn:
        asked = Asked(self._asked, prompt, max_tokens)
        self._asked += 1
        answer = self._answers[asked.number] = asyncio.get_running_loop().create_future()
        self._requests.write(json.dumps(asdict(asked)).encode() + b"\n")
        return await answer

    async def _read(self) -> None:
        while line := await self._lines.readline():
            answer = json.loads(line)
            self._answers.pop(answer["number"]).set_result(Drawn(answer["token_ids"], answer["logprobs"]))
        for waiting in self._answers.values():
            waiting.set_exception(self._error())

    def _error(self) -> RuntimeError:
        last_lines = self._log.read_text(errors="replace").splitlines()[-20:]
        return RuntimeError("\n".join((f"{' '.join(self._command)} ended:", *last_lines)))
