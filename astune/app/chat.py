"""Talking to a model: plain chat, no agent, no environment, nothing recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from astune.config import AstuneConfig
from astune.gateway.live_answers import LiveAnswers
from astune.runs import RunDirectory
from astune.schema import Completion, ContextOverflow, Forest, Message, SamplingParams

if TYPE_CHECKING:
    from astune.context_tracker import PendingCall
    from astune.engine.base import StreamingEngine
    from astune.engine.local.in_process import InProcessEngine

_SESSION = "chat"


def beginning_of(run: RunDirectory) -> list[Message]:
    """Return the messages before the question of the run's newest episode: instructions and examples."""
    with run.episodes() as episodes:
        rows = [row for row in episodes.list() if row.n_turns]
        forest = episodes.read(rows[-1].episode_id).forest if rows else Forest()
    first = next((node for node in forest.nodes if node.sampled), None)
    if first is None:
        return []
    return [{"role": node.role, "content": node.content} for node in forest.path(first.parent)[:-1]]


class Chat:
    """A conversation with a model in this process, which answers greedily.

    Args:
        model: as in `model.path`.
        beginning: messages that stand before the first one.
        engine: what samples; None loads the model.
    """

    def __init__(
        self,
        config: AstuneConfig,
        model: str,
        beginning: Sequence[Message] = (),
        *,
        engine: StreamingEngine | None = None,
    ) -> None:
        from astune.context_tracker import ContextTracker
        from astune.engine.model_files import resolve_model
        from astune.renderers import load_renderer

        folder = resolve_model(model)
        self._config = config
        self._renderer = load_renderer(folder)
        self._tracker = ContextTracker(self._renderer, config.rollout.max_model_len)
        self._beginning = self._messages = list(beginning)
        self._own: InProcessEngine | None = None
        if engine is None:
            engine = self._own = _loaded(folder, config)
        self._engine = engine

    async def answer(self, text: str, on_text: Callable[[str], object]) -> str:
        """Return the answer; `on_text` gets its beginning as often as more of it is sampled. Raises ContextOverflow if
        the conversation does not fit any more; the next message begins a new one."""
        asked = [*self._messages, {"role": "user", "content": text}]
        try:
            pending = self._tracker.prepare(asked, agent="assistant", trainable=False)
        except ContextOverflow:
            self._messages = self._beginning
            raise
        room = self._config.rollout.max_model_len - len(pending.prompt_ids)
        params = SamplingParams(
            max_tokens=min(room, self._config.rollout.max_response_length_in_one_turn),
            temperature=0.0,
            stop_token_ids=self._renderer.stop_token_ids,
        )
        reply = self._tracker.commit(pending, await self._sampled(pending, params, on_text))
        self._messages = [*asked, reply]
        return str(reply["content"])

    async def aclose(self) -> None:
        """Free the model."""
        if self._own is not None:
            self._own.close_session(_SESSION)
            await self._own.aclose()

    async def _sampled(
        self, pending: PendingCall, params: SamplingParams, on_text: Callable[[str], object]
    ) -> Completion:
        """The engine's completion, shown while it is made."""
        live = LiveAnswers(1)
        (answer,) = live.each
        answering = asyncio.create_task(
            self._engine.stream(pending.prompt_ids, params, session=_SESSION, on_token=answer.feed)
        )
        answer.begin(len(pending.prompt_ids), partial(self._tracker.settled, pending), answering.cancel)
        answering.add_done_callback(lambda _: live.notify())
        try:
            while not answering.done():
                seen = live.version
                on_text(answer.settled().content)
                await live.change(seen)
            return await answering
        finally:
            answering.cancel()


def _loaded(folder: Path, config: AstuneConfig) -> InProcessEngine:
    from astune.engine.local.in_process import InProcessEngine

    engine = InProcessEngine.load(
        folder,
        model=config.model,
        engine=config.engine.model_copy(update={"quantization": "none"}),
        max_model_len=config.rollout.max_model_len,
        deterministic=False,
    )
    engine.open_session(_SESSION)
    return engine
