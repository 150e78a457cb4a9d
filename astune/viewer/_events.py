"""Live updates: somebody looks at a run's files a few times a second, once for all who listen, and tells what is new.

    event: metrics    one new line of metrics; its id is the number of lines up to it
    event: episodes   {"total", "last"}: how many episodes there are, and the `seq` of the newest
    event: status     the run's info, when it begins, ends or dies
    event: runs       {"total"}, of the folder: a run was added, or one ended

Who comes back with a `Last-Event-ID` gets the lines of metrics that it missed. A run that goes on from a checkpoint
writes its last steps again, and all of its lines are told again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from astune.schema import AstuneError
from astune.viewer._answers import Refusal, as_json
from astune.viewer._library import Library
from astune.viewer._run import ViewedRun

RUN_TICK_S = 0.5
FOLDER_TICK_S = 2.0
"""Looking at a folder reads something of each of its runs."""
HEARTBEAT_S = 15.0
_RETRY = b"retry: 2000\n\n"
_WAITING = 2000
"""Events that a client may leave unread; one that leaves more is let go, and comes back for what it missed."""


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: object
    number: int | None = None

    def encode(self) -> bytes:
        head = f"event: {self.name}\n" + (f"id: {self.number}\n" if self.number is not None else "")
        return head.encode() + b"data: " + as_json(self.data) + b"\n\n"


class Watched(Protocol):
    """What changes; `look` is called in a thread every `tick_s`, and gives what is new since the last call."""

    @property
    def tick_s(self) -> float: ...

    def look(self) -> list[Event]: ...

    def greeting(self, after: int | None) -> list[Event]:
        """What a client is told first; `after` is the last line of metrics that it has, None for a new client."""
        ...


@dataclass
class WatchedRun:
    run: ViewedRun
    tick_s: float = RUN_TICK_S
    _n_lines: int = 0
    _episodes: tuple[int, Any] = (-1, None)
    _status: str = ""

    def look(self) -> list[Event]:
        return [*self._new_lines(), *self._new_episodes(), *self._new_status()]

    def greeting(self, after: int | None) -> list[Event]:
        lines = self.run.metrics().lines
        missed = [] if after is None else _numbered(lines, after if after <= len(lines) else 0)
        return [Event("status", self.run.info()), Event("episodes", self._newest()), *missed]

    def _new_lines(self) -> list[Event]:
        lines = self.run.metrics().lines
        known = self._n_lines if self._n_lines <= len(lines) else 0
        self._n_lines = len(lines)
        return _numbered(lines, known)

    def _new_episodes(self) -> list[Event]:
        try:
            version = self.run.ask(lambda reader: reader.data_version())
        except (AstuneError, Refusal):
            return []
        if version == self._episodes[0]:
            return []
        known, self._episodes = self._episodes[1], (version, self._newest())
        return [Event("episodes", self._episodes[1])] if known != self._episodes[1] else []

    def _new_status(self) -> list[Event]:
        known, self._status = self._status, self.run.status()
        return [Event("status", self.run.info())] if known != self._status else []

    def _newest(self) -> dict[str, int]:
        with suppress(AstuneError, Refusal):
            last, total = self.run.ask(lambda reader: (reader.last(), reader.count()))
            return {"total": total, "last": last[0] if last is not None else 0}
        return {"total": 0, "last": 0}


@dataclass
class WatchedFolder:
    library: Library
    tick_s: float = FOLDER_TICK_S
    _known: dict[str, str] = field(default_factory=dict[str, str])

    def look(self) -> list[Event]:
        known, self._known = self._known, {name: run.status() for name, run in self.library.runs().items()}
        return [Event("runs", {"total": len(self._known)})] if known != self._known else []

    def greeting(self, after: int | None) -> list[Event]:
        return [Event("runs", {"total": len(self.library.runs())})]


class Pulse:
    """Everything that is watched now, and who listens to it."""

    def __init__(self) -> None:
        self._watches: dict[str | None, _Watch] = {}

    async def listen(self, key: str | None, make: Callable[[], Watched], after: int | None) -> AsyncIterator[bytes]:
        """The stream of one client.

        Args:
            key: the run's name, None for the folder; all who name the same are told by one watch.
            after: the client's `Last-Event-ID`.
        """
        watch = self._watches.get(key)
        if watch is None or watch.task.done():
            watch = self._watches[key] = _Watch(make())
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        watch.listeners.add(events)
        try:
            yield _RETRY
            for event in await watch.greeting(after):
                yield event.encode()
            while True:
                try:
                    event = await asyncio.wait_for(events.get(), HEARTBEAT_S)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if event is None or events.qsize() > _WAITING:
                    return
                yield event.encode()
        finally:
            watch.listeners.discard(events)
            if not watch.listeners and self._watches.get(key) is watch:
                del self._watches[key]
                watch.task.cancel()

    def close(self) -> None:
        """End every stream."""
        for watch in self._watches.values():
            watch.tell(None)


class _Watch:
    """One task that looks; it begins with what is there already, of which nobody is told."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._begun = asyncio.Event()
        self.listeners: set[asyncio.Queue[Event | None]] = set()
        self.task = asyncio.create_task(self._run())

    async def greeting(self, after: int | None) -> list[Event]:
        """Nothing that comes later is missed: it is not given before the task has begun to look."""
        await self._begun.wait()
        return await asyncio.to_thread(self._watched.greeting, after)

    def tell(self, event: Event | None) -> None:
        for listener in self.listeners:
            listener.put_nowait(event)

    async def _run(self) -> None:
        try:
            await asyncio.to_thread(self._watched.look)
            self._begun.set()
            while True:
                await asyncio.sleep(self._watched.tick_s)
                for event in await asyncio.to_thread(self._watched.look):
                    self.tell(event)
        finally:
            self._begun.set()
            self.tell(None)  # whatever ended it, those who listen come back and have a new one


def _numbered(lines: list[Any], after: int) -> list[Event]:
    return [Event("metrics", line, number) for number, line in enumerate(lines, start=1) if number > after]
