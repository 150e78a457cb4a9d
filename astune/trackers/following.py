"""Passes a run's metrics to its trackers, each in its own thread: no tracker fails or delays a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue

from astune.config.schema import AstuneConfig
from astune.runs import MetricsLine
from astune.schema import contained, described, visible
from astune.trackers.base import EndStatus, TrackedRun, Tracker
from astune.trackers.loading import NamedTracker

FINISHES_WITHIN_S = 60.0


class Trackers:
    """Follows the metrics of a run, from when its log is opened; a `MetricsFollower`.

    Args:
        note: receives lines that the user is to read, from any thread.
    """

    def __init__(
        self,
        trackers: Sequence[NamedTracker],
        run: TrackedRun,
        config: AstuneConfig,
        note: Callable[[str], object],
        *,
        finishes_within_s: float = FINISHES_WITHIN_S,
    ) -> None:
        self._named = trackers
        self._run = run
        self._config = config
        self._note = note
        self._finishes_within_s = finishes_within_s
        self._followers: list[_Follower] = []

    def on_open(self, last_step: int) -> None:
        if not self._followers:
            run = replace(self._run, last_step=last_step)
            self._followers = [_Follower(named, run, self._config, self._note) for named in self._named]

    def on_line(self, line: MetricsLine) -> None:
        for follower in self._followers:
            follower.do(lambda tracker: tracker.log(line.step, line.kind, line.metrics))

    def finish(self, status: EndStatus) -> None:
        """Let every tracker send what is left, and wait for that, but not for ever."""
        for follower in self._followers:
            follower.end(status)
        deadline = time.monotonic() + self._finishes_within_s
        for follower in self._followers:
            follower.thread.join(max(0.0, deadline - time.monotonic()))
            if follower.thread.is_alive():
                self._note(
                    f"tracker {follower.name}: not done {self._finishes_within_s:g} s after the run ended, and left; "
                    "metrics.jsonl in the run's folder is complete"
                )


class _Follower:
    """A tracker in its thread. Where it does not start, it is left out; what else fails is reported once."""

    def __init__(
        self, named: NamedTracker, run: TrackedRun, config: AstuneConfig, note: Callable[[str], object]
    ) -> None:
        self.name = named.name
        self._tracker = named.tracker
        self._note = note
        self._failed = False
        self._calls: SimpleQueue[Callable[[Tracker], object] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, args=(run, config), name=f"tracker {named.name}", daemon=True)
        self.thread.start()

    def do(self, call: Callable[[Tracker], object]) -> None:
        self._calls.put(call)

    def end(self, status: EndStatus) -> None:
        self._calls.put(lambda tracker: tracker.finish(status))
        self._calls.put(None)

    def _work(self, run: TrackedRun, config: AstuneConfig) -> None:
        if not self._attempt(lambda tracker: self._start(tracker, run, config), "nothing is sent to it"):
            return
        while (call := self._calls.get()) is not None:
            self._attempt(call, "it may lack some metrics")

    def _start(self, tracker: Tracker, run: TrackedRun, config: AstuneConfig) -> None:
        shown_at = tracker.start(run, config)
        if shown_at is not None:
            self._note(visible(f"tracker {self.name}: {shown_at}"))

    def _attempt(self, call: Callable[[Tracker], object], consequence: str) -> bool:
        try:
            with contained(in_thread=True):
                call(self._tracker)
        except Exception as cause:
            if not self._failed:
                self._failed = True
                why = " ".join(described(cause).split())
                self._note(visible(f"warning: tracker {self.name} failed, and {consequence}: {why}"))
            return False
        return True
