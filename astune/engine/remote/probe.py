"""Probe of a server before a run: does it return token ids and log-probabilities, do they match ours, and does it
accept weights?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from astune.engine.remote.endpoint import Endpoint, Refusal, choice_of
from astune.engine.remote.handover import Handover
from astune.engine.remote.served import NOTHING_ELSE

_TEXT = "One, two, three: 4 5 6"
_LIKELIEST = 5
_NO_SUCH_ROUTE = (400, 404, 405, 422)
"""Errors of endpoints that only complete messages."""
_ANSWERS_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of the probe.

    `tempered`: log-probabilities are of the distribution that is sampled from, temperature applied. `no_weights` is
    what keeps the server from taking weights, in words; empty where nothing does, or where it is not asked for.
    """

    token_ids: bool
    logprobs: bool
    same_tokenizer: bool | None = None
    tempered: bool | None = None
    no_weights: str = ""

    @property
    def exact(self) -> bool:
        """Whether episodes can be recorded token for token."""
        return self.token_ids and self.logprobs and self.same_tokenizer is not False

    def lacking(self, *, temperature: float) -> list[str]:
        """Return why it cannot be trained with."""
        lacks: list[str] = []
        if not self.token_ids:
            lacks.append("it returns no token ids")
        if not self.logprobs:
            lacks.append("it returns no log-probabilities")
        if self.same_tokenizer is False:
            lacks.append("its tokenizer is not that of model.path")
        if temperature != 1 and not self.tempered:
            how = "leave out" if self.tempered is False else "do not show that they have"
            lacks.append(f"its log-probabilities {how} the temperature {temperature:g}")
        if self.no_weights:
            lacks.append(self.no_weights)
        return lacks


async def probe(endpoint: Endpoint, encode: Callable[[str], list[int]], *, weights: bool = False) -> Probe:
    """Ask for one token, twice, and where `weights` are to be given, whether they are taken.

    Raises:
        EngineError: the server cannot be reached, or refuses for another reason.
    """
    no_weights = await Handover(endpoint).missing() if weights else ""
    try:
        answer = await endpoint.post(
            "/completions", _request(endpoint.model, temperature=1.0), timeout_s=_ANSWERS_WITHIN_S
        )
    except Refusal as refusal:
        if refusal.status not in _NO_SUCH_ROUTE:
            raise
        return Probe(token_ids=False, logprobs=False, no_weights=no_weights)
    choice = choice_of(answer, endpoint.root)
    known = choice.get("token_ids") is not None
    prompt_ids = choice.get("prompt_token_ids")
    logprobs = choice.get("logprobs") or {}
    return Probe(
        token_ids=known,
        logprobs=bool(logprobs.get("token_logprobs")),
        same_tokenizer=None if prompt_ids is None else list(prompt_ids) == encode(_TEXT),
        tempered=await _tempered(endpoint, logprobs),
        no_weights=no_weights,
    )


async def _tempered(endpoint: Endpoint, at_one: dict[str, list[dict[str, float]]]) -> bool | None:
    """Halving the temperature doubles the distance between two log-probabilities, or leaves it as it is."""
    answer = await endpoint.post("/completions", _request(endpoint.model, temperature=0.5), timeout_s=_ANSWERS_WITHIN_S)
    at_half = (choice_of(answer, endpoint.root).get("logprobs") or {}).get("top_logprobs")
    if not at_half or not at_one.get("top_logprobs"):
        return None
    first, last = at_one["top_logprobs"][0], at_half[0]
    both = sorted(first.keys() & last.keys(), key=lambda token: first[token])
    if len(both) < 2 or first[both[-1]] - first[both[0]] < 0.1:
        return None
    ratio = (last[both[-1]] - last[both[0]]) / (first[both[-1]] - first[both[0]])
    return ratio > 1.5


def _request(model: str, *, temperature: float) -> dict[str, object]:
    return {
        "model": model,
        "prompt": _TEXT,
        "max_tokens": 1,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        **NOTHING_ELSE,
        "logprobs": _LIKELIEST,
        "return_token_ids": True,
    }
