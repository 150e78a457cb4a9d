"""An engine that samples a token whenever it is allowed to, and episodes that are played with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rollout_stage import build_stage, flow
from rollout_stage import task as task_of

from astune import AstuneProxy
from astune.engine.base import OnToken, ignore_token
from astune.engine.scripted import ScriptedEngine
from astune.renderers import Renderer
from astune.schema import Completion, EngineError, Episode, SamplingParams

ASK: list[Any] = [{"role": "user", "content": "How many?"}]
TEXT = "Four of them, 漢字 and 🙂 included."
Agent = Callable[[AstuneProxy], Awaitable[None]]


class Stepping(ScriptedEngine):
    """Samples a token whenever it is allowed to, and fails where it is told to."""

    def __init__(self, reply: Sequence[int], *, fails_after: int | None = None) -> None:
        super().__init__(lambda *_: list(reply))
        self.allowed = asyncio.Semaphore(0)
        self.waiting = asyncio.Event()
        """Nothing is allowed any more."""
        self.cancelled = asyncio.Event()
        self.fails_after = fails_after

    def allow(self, n: int = 1_000) -> None:
        for _ in range(n):
            self.allowed.release()

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str, on_token: OnToken = ignore_token
    ) -> Completion:
        completion = await super().stream(prompt_ids, params, session=session)
        try:
            for n, token in enumerate(completion.token_ids):
                if n == self.fails_after:
                    raise EngineError("the engine broke")
                if self.allowed.locked():
                    self.waiting.set()
                await self.allowed.acquire()
                on_token(token)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return completion


async def played(renderer: Renderer, engine: ScriptedEngine, agent: Agent, **rollout: Any) -> Episode:
    """The only episode; `Stepping` does not count the tokens of what was cancelled."""
    (group,) = await build_stage(renderer, flow(agent), engine=engine, **rollout).play([task_of()])
    (episode,) = [*group.episodes, *group.failed_attempts]
    return episode


def stepping(renderer: Renderer, text: str = TEXT, **options: Any) -> Stepping:
    return Stepping(renderer.answer_ids([*ASK, {"role": "assistant", "content": text}], []), **options)


def answers_of(episode: Episode) -> list[str]:
    return [node.content for node in episode.forest.nodes if node.sampled]
