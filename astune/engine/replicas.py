"""Several servers of one model as one engine: each episode stays on the server where its prefix cache is warm.

A server that does not answer is left out; its episodes fail, are run again by the pool, and open their new session
elsewhere. It is asked from time to time, and is back as soon as it answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

from astune.engine.base import EngineStats, WeightsSource
from astune.engine.served import ServedEngine
from astune.schema import Completion, EngineError, SamplingParams

_log = logging.getLogger(__name__)
BETWEEN_VISITS_S = 2.0


class Replicas:
    """Implements `InferenceEngine` over several of them."""

    def __init__(self, engines: Sequence[ServedEngine]) -> None:
        self._engines = list(engines)
        self._home: dict[str, ServedEngine] = {}
        self._out: set[ServedEngine] = set()
        self._visitor: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()

    def open_session(self, session: str) -> None:
        """On the server with the fewest open ones; where none answers, on any, whose error then says so."""
        here = [engine for engine in self._engines if engine not in self._out] or self._engines
        load = Counter(self._home.values())
        self._home[session] = min(here, key=lambda engine: load[engine])

    def close_session(self, session: str) -> None:
        self._home.pop(session, None)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        if session not in self._home:
            self.open_session(session)
        engine = self._home[session]
        try:
            return await engine.generate(prompt_ids, params, session=session)
        except EngineError:
            if not await engine.answers():
                self._leave_out(engine)
            raise
        except asyncio.CancelledError:  # perhaps by a deadline: one that hangs is found out, too
            self._looks.add(look := asyncio.ensure_future(self._look_at(engine)))
            look.add_done_callback(self._looks.discard)
            raise

    async def load_weights(self, source: WeightsSource) -> int:
        raise EngineError("the servers take no new weights", hint="train with engine.type: in_process")

    def stats(self) -> EngineStats:
        each = [engine.stats() for engine in self._engines]
        return EngineStats(
            **{field.name: sum(getattr(one, field.name) for one in each) for field in fields(EngineStats)}
        )

    async def aclose(self) -> None:
        for task in (*self._looks, *filter(None, (self._visitor,))):
            task.cancel()
        for engine in self._engines:
            await engine.aclose()

    async def _look_at(self, engine: ServedEngine) -> None:
        if not await engine.answers():
            self._leave_out(engine)

    def _leave_out(self, engine: ServedEngine) -> None:
        if engine in self._out:
            return
        self._out.add(engine)
        left = len(self._engines) - len(self._out)
        _log.warning(
            "%s does not answer and is left out; %d of %d servers go on", engine.name, left, len(self._engines)
        )
        if self._visitor is None or self._visitor.done():
            self._visitor = asyncio.ensure_future(self._visit())

    async def _visit(self) -> None:
        while self._out:
            await asyncio.sleep(BETWEEN_VISITS_S)
            for engine in list(self._out):
                if await engine.answers():
                    self._out.discard(engine)
                    _log.warning("%s answers again", engine.name)
