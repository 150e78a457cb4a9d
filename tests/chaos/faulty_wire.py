"""A wire between a run and its environment service that loses, delays, repeats, cuts and garbles what goes over it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence

FAULTS = ("lost", "answer lost", "late", "sent twice", "cut", "garbled", "429", "500")


class FaultyWire:
    """Listens on a port of its own and passes each request on to `port`; `met` counts what happened to them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.met = Counter[str]()
        self._kinds: Sequence[str] = ()
        self._share = 0.0
        self._rng = random.Random(0)

    def go_wrong(self, kinds: Sequence[str], share: float, seed: int) -> None:
        self._kinds, self._share, self._rng = kinds, share, random.Random(seed)

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            while request := await _message(reader):
                kind = self._rng.choice(self._kinds) if self._kinds and self._rng.random() < self._share else ""
                self.met[kind] += 1
                answer = await self._answer(kind, request)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def _answer(self, kind: str, request: bytes) -> bytes | None:
        """None breaks the connection off."""
        match kind:
            case "lost":
                return None
            case "429" | "500":
                head = f"HTTP/1.1 {kind} Storm\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n"
                return head.encode() + b"{}"
            case "late":
                await asyncio.sleep(self._rng.random())
        answer = await self._pass_on(request)
        match kind:
            case "answer lost":
                return None
            case "sent twice":
                return await self._pass_on(request)
            case "cut":
                return answer[: len(answer) // 2]
            case "garbled":
                head, _, body = answer.partition(b"\r\n\r\n")
                return head + b"\r\n\r\n" + bytes(byte ^ 0x55 for byte in body)
        return answer

    async def _pass_on(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            return await _message(reader)
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One whole request or answer; empty at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head + await reader.readexactly(length)
