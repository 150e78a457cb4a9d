"""Servers of one model as one engine: each episode stays on the server where its prefix cache is warm.

A server that does not answer is left out; its episodes fail, are run again by the pool, and open their new session
elsewhere. It is asked from time to time, and is used again once it answers and has loaded the current weights. While
all are away, calls wait for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

from astune.engine.base import EngineStats, OnToken, WeightsSource, ignore_token
from astune.engine.remote.publication import Publication, PublishedWeights
from astune.engine.remote.served import ServedEngine
from astune.schema import Completion, DeadlineExceeded, EngineError, SamplingParams

_log = logging.getLogger(__name__)
BETWEEN_VISITS_S = 2.0
"""Much less than a server needs to start, so that a restart is noticed."""
BACK_WITHIN_S = 600.0
"""A server that is started again reads a large model and compiles it in minutes."""
_FAILURES = (EngineError, DeadlineExceeded)


class Replicas:
    """Implements `InferenceEngine` over one server or several.

    Args:
        weights: where weights are put for the servers; None where they are given none.
    """

    def __init__(self, engines: Sequence[ServedEngine], weights: PublishedWeights | None = None) -> None:
        self._engines = list(engines)
        self._weights = weights
        self._publication: Publication | None = None
        self._home: dict[str, ServedEngine] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._looks: set[asyncio.Task[None]] = set()
        self.ended: EngineError | DeadlineExceeded | None = None
        """Why nothing is asked any more."""
        self._all_away_since: float | None = None

    def open_session(self, session: str) -> None:
        """Open a session on the server with the fewest; where none is usable, on any."""
        load = Counter(self._home.values())
        self._home[session] = min(self._usable() or self._engines, key=lambda engine: load[engine])

    def close_session(self, session: str) -> None:
        self._home.pop(session, None)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        return await self.stream(prompt_ids, params, session=session)

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str, on_token: OnToken = ignore_token
    ) -> Completion:
        await self._one_is_usable()
        if session not in self._home:
            self.open_session(session)
        engine = self._home[session]
        try:
            return await engine.stream(prompt_ids, params, session=session, on_token=on_token)
        except EngineError:
            await self._look_at(engine)
            raise
        except asyncio.CancelledError:  # perhaps by a deadline: one that hangs is found out, too
            self._looks.add(look := asyncio.ensure_future(self._look_at(engine)))
            look.add_done_callback(self._looks.discard)
            raise

    async def load_weights(self, source: WeightsSource) -> int:
        """Give the weights to every server that answers; one that does not take them ends it all.

        One that returns later takes them then. Nothing waits for it here, where a trained step is not recorded yet and
        cannot be cancelled: `generate` does.
        """
        self._raise_if_ended()
        if self._weights is None:
            raise EngineError("the servers of this run are given no weights", hint="this is a defect of astune")
        self._publication = await asyncio.to_thread(self._weights.publish, source)
        asked = self._usable()
        given = await asyncio.gather(*(engine.take(self._publication) for engine in asked), return_exceptions=True)
        for engine, failure in zip(asked, given, strict=True):
            if failure is None:
                continue
            if not isinstance(failure, _FAILURES):
                raise failure
            if await engine.answers():
                self.ended = failure
                raise failure
            _log.warning("%s took no weights version %d, does not answer and is left out", engine.name, source.version)
        self._watch()
        self._raise_if_ended()
        self._weights.keep_only(self._publication)
        return source.version

    def stats(self) -> EngineStats:
        return EngineStats.total(engine.stats() for engine in self._engines)

    async def aclose(self) -> None:
        tasks = [*self._looks, *self._watchers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for engine in self._engines:
            await engine.aclose()

    def _usable(self) -> list[ServedEngine]:
        return [engine for engine in self._engines if engine.usable]

    def _raise_if_ended(self) -> None:
        if self.ended is not None:
            raise EngineError(self.ended.message, hint=self.ended.hint)

    async def _one_is_usable(self) -> None:
        """Wait while all are away.

        Raises:
            EngineError: the engine was closed, or none returned in time.
        """
        while not self._usable():
            now = asyncio.get_running_loop().time()
            self._all_away_since = self._all_away_since or now
            if now - self._all_away_since > BACK_WITHIN_S and self.ended is None:
                names = ", ".join(engine.name for engine in self._engines)
                self.ended = EngineError(
                    f"none of the servers answered for {BACK_WITHIN_S / 60:.0f} minutes: {names}",
                    hint="start one again, and continue with --resume",
                )
            self._raise_if_ended()
            await asyncio.sleep(BETWEEN_VISITS_S / 4)
        self._all_away_since = None
        self._raise_if_ended()

    async def _look_at(self, engine: ServedEngine) -> None:
        if engine.usable and not await engine.answers():
            self._leave_out(engine)

    def _leave_out(self, engine: ServedEngine, why: str = "does not answer") -> None:
        if not engine.usable:  # another call of it was faster to find out
            return
        engine.usable = False
        left = len(self._usable())
        goes_on = f"{left} of {len(self._engines)} servers go on" if left else "calls wait until a server answers"
        _log.warning("%s %s and is left out; %s", engine.name, why, goes_on)
        self._watch()

    def _watch(self) -> None:
        if not self._watchers:
            self._watchers = [asyncio.ensure_future(self._visit(engine)) for engine in self._engines]

    async def _visit(self, engine: ServedEngine) -> None:
        """See to it that a server that is used has the weights it was given, and one that is left out comes back."""
        reported = ""
        while True:
            await asyncio.sleep(BETWEEN_VISITS_S)
            if not engine.usable:
                refusal = await self._bring_back(engine)
                if refusal and refusal != reported:
                    _log.warning("%s answers again and stays left out: %s", engine.name, refusal)
                reported = refusal
            elif engine.holds is not None:
                await self._see_what_it_holds(engine)

    async def _see_what_it_holds(self, engine: ServedEngine) -> None:
        try:
            other = await engine.lost()
        except _FAILURES:
            await self._look_at(engine)
            return
        if other:
            self.ended = EngineError(
                f"another process sent weights to {engine.name}: it holds {other}",
                hint="a server that is trained with is for one run alone; continue with --resume",
            )
        elif other is not None:
            self._leave_out(engine, "was started again")

    async def _bring_back(self, engine: ServedEngine) -> str:
        """Use the server again if it answers and loads the current weights; returns why it did not."""
        if not await engine.answers():
            return ""
        publication = self._publication
        if publication is None:
            engine.usable = True
        else:
            try:
                await engine.take(publication)
            except _FAILURES as failure:
                return str(failure)
            if publication is not self._publication:  # others were published meanwhile, and not to this one
                engine.usable = False
                return ""
        _log.warning("%s answers again", engine.name)
        return ""
