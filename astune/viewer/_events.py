"""Live updates: a run's files are polled a few times a second, once for all clients, and changes are sent.

    event: metrics    {"run", ...}: one new line of a run's metrics
    event: episodes   {"run", "total", "last", "version"}: how many episodes there are, the `seq` of the newest, and a
                      number that grows with everything that is written to them, their advantages too
    event: status     a run's info, when it begins, ends or dies, and when it goes back to a checkpoint
    event: runs       {"total"}, of the folder: a run was added, or what a list of runs shows of one is another
    event: talk       {}: something was written to the store of conversations

A client receives changes of the folder and of all runs that it names over one stream, since browsers limit their
number. A new or returning client receives the `status` of each run, and then requests what it shows. A run that resumes
from a checkpoint writes its last steps again, and all of its lines are sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Protocol

from astune.runs import EpisodeReader, MetricsLine, stamps_of
from astune.schema import AstuneError
from astune.viewer._answers import Refusal, as_json
from astune.viewer._conversations import Conversations
from astune.viewer._library import Library
from astune.viewer._run import ViewedRun

RUN_TICK_S = 0.5
FOLDER_TICK_S = 2.0
"""Looking at a folder reads something of each of its runs."""
HEARTBEAT_S = 15.0
_RETRY = b"retry: 2000\n\n"
_WAITING = 2000
"""Events that a client may leave unread; one that leaves more is disconnected, and reconnects for what it missed."""


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: object

    def encode(self) -> bytes:
        return f"event: {self.name}\n".encode() + b"data: " + as_json(self.data) + b"\n\n"


class Watched(Protocol):
    """Watch of changes; `look` is called in a thread every `tick_s`, and returns what is new since the last call."""

    @property
    def tick_s(self) -> float: ...

    def look(self) -> list[Event]: ...

    def greeting(self) -> list[Event]:
        """First event of a client."""
        ...


@dataclass
class WatchedRun:
    run: ViewedRun
    tick_s: float = RUN_TICK_S
    _lines: list[MetricsLine] = field(default_factory=list[MetricsLine])
    _written: tuple[EpisodeReader, int] | None = None
    _version: int = 0
    _status: str = ""

    def look(self) -> list[Event]:
        return [*self._new_lines(), *self._new_episodes(), *self._new_status()]

    def greeting(self) -> list[Event]:
        return [Event("status", self.run.info()), self._newest()]

    def _new_lines(self) -> list[Event]:
        known, self._lines = self._lines, self.run.metrics().lines
        if known and (len(self._lines) < len(known) or self._lines[len(known) - 1] is not known[-1]):
            return [Event("status", self.run.info()), *self._metrics_events(self._lines)]
        return self._metrics_events(self._lines[len(known) :])

    def _metrics_events(self, lines: list[MetricsLine]) -> list[Event]:
        return [Event("metrics", {"run": self.run.name, **asdict(line)}) for line in lines]

    def _new_episodes(self) -> list[Event]:
        try:
            written = self.run.ask(lambda reader: (reader, reader.data_version()))
        except (AstuneError, Refusal):
            return []
        if written == self._written:
            return []
        self._written, self._version = written, self._version + 1
        return [self._newest()]

    def _new_status(self) -> list[Event]:
        known, self._status = self._status, self.run.status()
        return [Event("status", self.run.info())] if known != self._status else []

    def _newest(self) -> Event:
        total, newest = 0, None
        with suppress(AstuneError, Refusal):
            newest, total = self.run.ask(lambda reader: (reader.last(), reader.count()))
        last = newest[0] if newest is not None else 0
        return Event("episodes", {"run": self.run.name, "total": total, "last": last, "version": self._version})


@dataclass
class WatchedFolder:
    library: Library
    conversations: Conversations
    tick_s: float = FOLDER_TICK_S
    _known: dict[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])
    _written: object = None

    def look(self) -> list[Event]:
        known, self._known = self._known, {name: _shown(run) for name, run in self.library.runs().items()}
        store = self.conversations.path
        written, self._written = self._written, stamps_of(store) if store is not None else None
        runs = [Event("runs", {"total": len(self._known)})] if known != self._known else []
        return runs + ([Event("talk", {})] if written != self._written else [])

    def greeting(self) -> list[Event]:
        return [Event("runs", {"total": len(self._known)})]


def _shown(run: ViewedRun) -> tuple[object, ...]:
    """Return the listed state of a run that can change; for a finished run its notes."""
    if (status := run.status()) != "running":
        return status, run.notes_stamp()
    info = run.info()
    return status, run.notes_stamp(), info["steps"], info["episodes"], info["reward"], str(info["held_out"])


class Pulse:
    """Everything that is watched now, and who listens to it."""

    def __init__(self) -> None:
        self._watches: dict[str | None, _Watch] = {}

    async def listen(self, wanted: Mapping[str | None, Callable[[], Watched]]) -> AsyncIterator[bytes]:
        """The stream of one client. What is `wanted` stands by a run's name, None for the folder; clients of the same
        run share one watch."""
        events: asyncio.Queue[Event | None] = asyncio.Queue(_WAITING)
        watches = {key: self._join(key, make, events) for key, make in wanted.items()}
        try:
            yield _RETRY
            for watch in watches.values():
                for event in await watch.greeting():
                    yield event.encode()
            while True:
                try:
                    event = await asyncio.wait_for(events.get(), HEARTBEAT_S)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if event is None:
                    return
                yield event.encode()
        finally:
            for key, watch in watches.items():
                self._leave(key, watch, events)

    def _join(self, key: str | None, make: Callable[[], Watched], events: asyncio.Queue[Event | None]) -> _Watch:
        watch = self._watches.get(key)
        if watch is None or watch.task.done():
            watch = self._watches[key] = _Watch(make())
        watch.listeners.add(events)
        return watch

    def _leave(self, key: str | None, watch: _Watch, events: asyncio.Queue[Event | None]) -> None:
        watch.listeners.discard(events)
        if not watch.listeners and self._watches.get(key) is watch:
            del self._watches[key]
            watch.task.cancel()

    def close(self) -> None:
        """End every stream."""
        for watch in self._watches.values():
            watch.tell(None)


class _Watch:
    """Start a polling task; the initial state is not reported."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._begun = asyncio.Event()
        self.listeners: set[asyncio.Queue[Event | None]] = set()
        self.task = asyncio.create_task(self._run())

    async def greeting(self) -> list[Event]:
        """Nothing that comes later is missed: it is not given before the task has begun to look."""
        await self._begun.wait()
        return await asyncio.to_thread(self._watched.greeting)

    def tell(self, event: Event | None) -> None:
        for listener in [*self.listeners]:
            try:
                listener.put_nowait(event)
            except asyncio.QueueFull:
                self._let_go(listener)

    def _let_go(self, listener: asyncio.Queue[Event | None]) -> None:
        """End a listener's stream where it stopped reading, and drop what waits for it, since it may never read on."""
        self.listeners.discard(listener)
        while not listener.empty():
            listener.get_nowait()
        listener.put_nowait(None)

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
