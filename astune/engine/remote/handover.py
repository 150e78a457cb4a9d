"""Giving a vLLM server new weights: it reads them, drops what it cached with old ones, and proves that it has them.

The server was started with `vllm_worker/astune_weights.py` as its worker extension. vLLM reports success even where an
output head stayed old. So its log-probabilities of a fixed text have to be the trainer's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from astune.engine.fingerprint import Fingerprint
from astune.engine.remote.endpoint import Endpoint, Refusal
from astune.engine.remote.publication import Publication
from astune.engine.remote.vllm_worker.astune_weights import PROTOCOL
from astune.schema import EngineError, boundary

READS_WITHIN_S = 900.0
"""A large model over a network takes minutes."""
FORGETS_WITHIN_S = 60.0
"""Calls that were cancelled hold what they cached until the server has noticed."""
ANSWERS_WITHIN_S = 120.0
_BETWEEN_TRIES_S = 0.05
_MOST = 0.5
"""The part of a text's log-probabilities whose change at the trainer must change at least one at the server."""

TAKES_NONE = (
    "it takes no new weights, as vLLM does with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls "
    "astune_weights.TakesWeights"
)


class Handover:
    """Hands weights over to the server at `endpoint`. No call may run there meanwhile."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._before: tuple[Fingerprint, list[float]] | None = None

    async def missing(self) -> str:
        """Return why a responding server accepts no weights; empty if it does.

        Raises:
            DeadlineExceeded: it does not say.
        """
        try:
            states = await self._states()
            if {state.get("protocol") for state in states} != {PROTOCOL}:
                return "its worker extension is of another version of astune"
            if any(state["seeds_end_it"] for state in states):
                return "on a CPU it ends at requests with a seed, unless it has --no-enable-chunked-prefill"
            forgot = await self._forget()
        except EngineError:
            return TAKES_NONE
        return "it does not say whether it forgot what it cached" if forgot is None else ""

    async def holds(self) -> str:
        """The name of the publication that it loaded last; empty where it has its first weights."""
        names = {str(state.get("holds", "")) for state in await self._states()}
        return names.pop() if len(names) == 1 else ""

    async def give(self, publication: Publication) -> None:
        """Load these weights into the server.

        Raises:
            EngineError: it does not take them, or computes with others.
            DeadlineExceeded: it does not answer in time.
        """
        await self._give(publication)
        what = f"{self._endpoint.root}: forgetting what it cached with earlier weights"
        hint = "requests of another client may be running there; use a server exclusively for one training run"
        async with boundary(EngineError, what, timeout_s=FORGETS_WITHIN_S, hint=hint):
            while not await self._forget():  # noqa: ASYNC110 (there is no event to wait for)
                await asyncio.sleep(_BETWEEN_TRIES_S)
        if publication.fingerprint is not None:
            self._compare(
                publication.version, publication.fingerprint, await self._logprobs_of(publication.fingerprint)
            )

    async def _give(self, publication: Publication) -> None:
        where, version = self._endpoint.root, publication.version
        arguments = {"folder": str(publication.folder), "name": publication.name}
        hint = f"its log says more; a server on another machine has to see {publication.folder} under that same path"
        try:
            async with boundary(
                EngineError, f"{where}: reading weights version {version}", timeout_s=READS_WITHIN_S, hint=hint
            ):
                taken = await self._ask_workers("astune_take_weights", arguments, timeout_s=READS_WITHIN_S)
        except Refusal as refusal:
            raise EngineError(f"weights version {version} were not taken: {refusal.message}", hint=hint) from refusal
        for worker in taken:
            if worker.get("name") != publication.name:
                raise EngineError(
                    f"{where} did not take weights version {version}: {worker.get('error', worker)}", hint=hint
                )

    async def _logprobs_of(self, fingerprint: Fingerprint) -> list[float]:
        """The server's log-probabilities of the text."""
        ids = fingerprint.token_ids
        body = {
            "model": self._endpoint.model,
            "prompt": ids,
            "prompt_logprobs": 0,
            "max_tokens": 1,
            "temperature": 1.0,
        }
        what = f"{self._endpoint.root}: the log-probabilities of a prompt"
        async with boundary(EngineError, what, timeout_s=ANSWERS_WITHIN_S, hint="look into the server's log"):
            answer = await self._endpoint.post("/completions", body, timeout_s=ANSWERS_WITHIN_S)
            answered = answer["choices"][0]["prompt_logprobs"][1:]
            return [float(each[str(token)]["logprob"]) for token, each in zip(ids[1:], answered, strict=True)]

    def _compare(self, version: int, fingerprint: Fingerprint, logprobs: list[float]) -> None:
        distance = fingerprint.distance(logprobs)
        if not distance <= fingerprint.limit:
            raise EngineError(
                f"{self._endpoint.root} does not compute with weights version {version}, which it was given: its "
                f"log-probabilities of a fixed text are {distance:.2g} from the trainer's in the mean, and rounding "
                f"explains {fingerprint.limit:.2g}",
                hint="`astune check numerics CONF` looks for the cause: another model, another number format "
                "(model.dtype), or weights that do not reach what it computes with",
            )
        if self._before is not None:
            earlier, earlier_logprobs = self._before
            if logprobs == earlier_logprobs and fingerprint.changed_since(earlier) > _MOST:
                raise EngineError(
                    f"{self._endpoint.root} does not compute with weights version {version}, which it was given: it "
                    "gives a fixed text exactly the log-probabilities of before, and the trainer does not",
                    hint="`astune check numerics CONF` looks for the cause",
                )
        self._before = fingerprint, logprobs

    async def _states(self) -> list[dict[str, Any]]:
        what = f"{self._endpoint.root}: the state of its workers"
        async with boundary(EngineError, what, timeout_s=ANSWERS_WITHIN_S, hint="look into the server's log"):
            return await self._ask_workers("astune_state", {}, timeout_s=ANSWERS_WITHIN_S)

    async def _ask_workers(self, method: str, arguments: dict[str, str], *, timeout_s: float) -> list[dict[str, Any]]:
        """Return the response of every worker."""
        body = {"method": method, "kwargs": arguments}
        answer = await self._endpoint.control("/collective_rpc", body, timeout_s=timeout_s)
        return [dict(worker) for worker in answer["results"]]

    async def _forget(self) -> bool | None:
        """Whether it has dropped all keys and values; None where it does not say."""
        answer = await self._endpoint.control("/reset_prefix_cache", {}, timeout_s=FORGETS_WITHIN_S)
        return None if answer is None else bool(answer["success"])
