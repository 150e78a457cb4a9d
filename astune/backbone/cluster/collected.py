"""Results of an engine's workers that no step has used yet: attempts, episodes, groups.

A report out of order ends the run, for its tokens would be in no account or in two:

    attempt   unknown -> started -> ended -> grouped      started twice where a worker died before it ended
    group     finished -> in a step, or in a measurement
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from astune.backbone.cluster.messages import AttemptStarted, GroupFinished
from astune.engine.base import EngineStats
from astune.rollout.balance import token_balance
from astune.schema import Episode, EpisodeGroup, Split, Task, TrainerError
from astune.trainer.ledger import RolloutResult

_State = Literal["unknown", "started", "ended", "grouped"]
_LEGAL: frozenset[tuple[_State, _State]] = frozenset(
    {
        ("unknown", "started"),
        ("started", "started"),
        ("started", "ended"),
        ("ended", "grouped"),
    }
)
"""(state of an attempt, state that a report moves it to); every other pair is out of order."""


class TransitionError(TrainerError):
    """A report came out of order."""


@dataclass(slots=True)
class _Attempt:
    began_at: float
    episode: Episode | None = None

    @property
    def state(self) -> _State:
        return "started" if self.episode is None else "ended"


@dataclass(frozen=True, slots=True)
class _Group:
    split: Split
    group: EpisodeGroup
    stats: EngineStats
    began_at: float
    ended_at: float


class Collected:
    """Gathers reports of the workers until a step or a measurement uses them.

    Args:
        tasks: by split and id, all that the run may report.
        engine: name of the engine, for messages.
    """

    def __init__(self, tasks: dict[tuple[Split, str], Task], engine: str) -> None:
        self._tasks = tasks
        self._engine = engine
        self._attempts: dict[str, _Attempt] = {}
        self._groups: dict[str, _Group] = {}
        self._explored: defaultdict[str, set[str]] = defaultdict(set)

    def start(self, report: AttemptStarted) -> Task:
        """Note that an attempt began; returns its task. Raises TransitionError for a task that is none of the run's."""
        self._move(report.episode_id, "started")
        self._attempts[report.episode_id] = _Attempt(time.monotonic())
        return self._task(report.split, report.task_id)

    def end(self, episode: Episode) -> None:
        """Note a finished or failed attempt. Raises TransitionError where it was never started."""
        self._move(episode.episode_id, "ended")
        self._attempts[episode.episode_id].episode = episode

    def finish_group(self, report: GroupFinished) -> None:
        """Gather ended attempts into their group. Raises TransitionError where one has not ended, or it is there."""
        attempts: dict[str, _Attempt] = {}
        for episode_id in (*report.episodes, *report.failed):
            self._move(episode_id, "grouped")
            attempts[episode_id] = self._attempts.pop(episode_id)
        if report.uid in self._groups:
            raise TransitionError(
                f"{self._engine} reported the group {report.uid} again, before the first one was used",
                hint=f"its process may have died and repeated it; see {self._engine}'s log, then resume",
            )
        episodes = {name: attempt.episode for name, attempt in attempts.items() if attempt.episode is not None}
        now = time.monotonic()
        self._groups[report.uid] = _Group(
            report.split,
            EpisodeGroup(
                self._task(report.split, report.task_id),
                [episodes[name] for name in report.episodes],
                [episodes[name] for name in report.failed],
                report.dropped,
            ),
            report.stats,
            min((attempt.began_at for attempt in attempts.values()), default=now),
            now,
        )
        if report.split == "train":
            self._explored[report.uid.rpartition("/")[0]].add(report.uid)

    def require_explored(self, batch: int, wanted: int) -> None:
        """Raise TrainerError where groups of a batch were not reported: a lost one would be waited for without end."""
        there = len(self._explored.pop(str(batch), ()))
        if there != wanted:
            raise self._lost(wanted - there, wanted, f"batch {batch}")

    def take_step(self, uids: Sequence[str], wanted: int, step: int) -> RolloutResult:
        """Hand out the groups of a step. Raises TrainerError where there are not `wanted`: engines drop failed ones.

        TransitionError where one was never reported, or used before.
        """
        missing = [uid for uid in uids if uid not in self._groups]
        if missing:
            raise TransitionError(
                f"{self._engine} trained the group {missing[0]}, which was not reported or trained before",
                hint="this is a defect of astune",
            )
        if len(uids) != wanted:
            raise self._lost(wanted - len(uids), wanted, f"step {step}")
        return self._take(uids)

    def take_validation(self, wanted: int, step: int) -> RolloutResult:
        """Hand out the groups of a measurement. Raises TrainerError where there are not `wanted`."""
        uids = [uid for uid, one in self._groups.items() if one.split == "validation"]
        if len(uids) != wanted:
            raise self._lost(wanted - len(uids), wanted, f"the measurement after step {step}")
        return self._take(uids)

    def left(self) -> list[Episode]:
        """Episodes that no step or measurement used."""
        ahead = [episode for one in self._groups.values() for episode in one.group.episodes]
        return [*ahead, *(one.episode for one in self._attempts.values() if one.episode is not None)]

    def _take(self, uids: Sequence[str]) -> RolloutResult:
        return _result([self._groups.pop(uid) for uid in uids])

    def _move(self, episode_id: str, to: _State) -> None:
        attempt = self._attempts.get(episode_id)
        state: _State = "unknown" if attempt is None else attempt.state
        if (state, to) not in _LEGAL:
            raise TransitionError(
                f"{self._engine} reported the attempt {episode_id} as {to}, and it is {state}",
                hint=f"its process may have died and repeated it; see {self._engine}'s log, then resume",
            )

    def _task(self, split: Split, task_id: str) -> Task:
        task = self._tasks.get((split, task_id))
        if task is None:
            raise TransitionError(f"{self._engine} reported the task {task_id}, which is none of {split}'s")
        return task

    def _lost(self, n: int, wanted: int, of: str) -> TrainerError:
        return TrainerError(
            f"{self._engine} lost {n} of {wanted} groups of {of}",
            hint=f"a process that ran them died, or took too long; look into {self._engine}'s log",
        )


def _result(taken: Sequence[_Group]) -> RolloutResult:
    """The groups, and what the servers did for them from the first episode's begin to the last group's end."""
    groups = [one.group for one in taken]
    seconds = max((one.ended_at for one in taken), default=0.0) - min((one.began_at for one in taken), default=0.0)
    counted = EngineStats.total(one.stats for one in taken)
    return RolloutResult(groups, counted, max(seconds, 1e-9), token_balance(groups, counted))
