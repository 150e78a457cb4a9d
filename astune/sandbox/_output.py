"""Reader of both output streams of a call while it runs, up to a total number of bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable


class Output:
    """Output reader, created on the event loop that waits for the call. Pass on `write_ends`, then call `let_go`."""

    def __init__(self, limit_bytes: int, *, when_full: Callable[[], None]) -> None:
        self.full = False
        self._room = limit_bytes
        self._when_full = when_full
        self._loop = asyncio.get_running_loop()
        self._streams: list[_Stream] = []
        self.write_ends: list[int] = []
        for _ in range(2):
            read_end, write_end = os.pipe()
            os.set_blocking(read_end, False)
            stream = _Stream(read_end, self._loop.create_future())
            self._streams.append(stream)
            self.write_ends.append(write_end)
            self._loop.add_reader(read_end, self._read, stream)

    def let_go(self) -> None:
        """Close our copies of the write ends, so that the streams end with the call."""
        while self.write_ends:
            os.close(self.write_ends.pop())

    async def ended(self) -> None:
        """Wait until all writers have closed the streams, or reading has stopped."""
        await asyncio.wait([stream.ended for stream in self._streams])

    def streams(self) -> tuple[bytes, bytes]:
        out, err = (b"".join(stream.chunks) for stream in self._streams)
        return out, err

    def close(self) -> None:
        self.let_go()
        for stream in self._streams:
            self._end(stream)
            os.close(stream.descriptor)

    def _read(self, stream: _Stream) -> None:
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(stream.descriptor, 1 << 16)
            stream.chunks.append(chunk[: self._room])
            self._room -= len(chunk)
            if self._room < 0:
                self.full = True
                for each in self._streams:
                    self._end(each)
                self._when_full()
            elif not chunk:
                self._end(stream)

    def _end(self, stream: _Stream) -> None:
        """Read no more. The pipe stays: a writer waits until it is stopped, and does not end by a broken pipe."""
        if not stream.ended.done():
            self._loop.remove_reader(stream.descriptor)
            stream.ended.set_result(None)


class _Stream:
    def __init__(self, descriptor: int, ended: asyncio.Future[None]) -> None:
        self.descriptor = descriptor
        self.ended = ended
        self.chunks: list[bytes] = []
