"""What a rollout test plays on: a scripted engine, an observer that remembers, and a pool around them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from astune import AstuneProxy, Task, Workflow
from astune.config.schema import AstuneConfig
from astune.engine.base import InferenceEngine
from astune.engine.scripted import ScriptedEngine
from astune.renderers import Renderer
from astune.rollout import RolloutObserver, RolloutPool
from astune.schema import Episode, EpisodeGroup

HELLO = [100, 101, 102]


class OneReward:
    """A judge that is always pleased."""

    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> tuple[float, bool]:
        return 1.0, True


PLEASED = OneReward()


@dataclass
class Watcher:
    """An observer that remembers."""

    started: list[str] = field(default_factory=list)
    waits: list[tuple[str, str]] = field(default_factory=list)
    finished: list[Episode] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)

    def on_started(self, episode_id: str, task: Task) -> None:
        self.started.append(episode_id)

    def on_waits_for(self, episode_id: str, what: str) -> None:
        self.waits.append((episode_id, what))

    def on_finished(self, episode: Episode) -> None:
        self.finished.append(episode)

    def on_attempt_failed(self, episode: Episode) -> None:
        self.failed.append(episode)


@dataclass
class Stage:
    """One pool with everything around it, to play a workflow on."""

    renderer: Renderer
    engine: InferenceEngine
    pool: RolloutPool
    watcher: Watcher

    async def play(self, tasks: Sequence[Task], *, num_repeat: int = 1, step: int = 1) -> list[EpisodeGroup]:
        return await self.pool.run_groups(tasks, step=step, split="train", num_repeat=num_repeat, temperature=1.0)

    async def play_one(self, **fields: Any) -> Episode:
        """The only episode of a task with these fields, finished or failed, whose tokens are accounted for."""
        before = self.engine.stats()
        (group,) = groups = await self.play([task(**fields)])
        assert self.pool.balance(groups, self.engine.stats() - before).difference == 0
        (episode,) = [*group.episodes, *group.failed_attempts]
        return episode


Script = Callable[..., Sequence[int] | Awaitable[Sequence[int]]]


def build_stage(
    renderer: Renderer,
    workflow: type[Workflow],
    *,
    replies: Script | Sequence[Sequence[int]] = lambda *_: HELLO,
    judge: Any = PLEASED,
    observer: RolloutObserver | None = None,
    engine: InferenceEngine | None = None,
    models: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    engine_type: str = "in_process",
    **rollout: Any,
) -> Stage:
    config = AstuneConfig.model_validate(
        {
            "models": models or {},
            "trainer": trainer or {},
            "engine": {"type": engine_type},
            "rollout": {"max_attempts": 1} | rollout,
        }
    )
    engine = engine or ScriptedEngine(replies)
    watcher = Watcher()
    pool = RolloutPool(engine, renderer, workflow, judge, config, observer or watcher)
    return Stage(renderer, engine, pool, watcher)


def flow(agent: Callable[[AstuneProxy], Awaitable[object]]) -> type[Workflow]:
    """A workflow that does what `agent` does."""

    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            await agent(proxy)

    return Flow


def task(task_id: str = "t", **fields: Any) -> Task:
    return Task(task_id=task_id, main_query="Hi", **fields)


def running_tasks() -> list[str]:
    """Tasks beside the test's own."""
    return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
