"""Request to an engine and its response: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from astune.schema.grammar import Constraint, Grammar

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one completion.

    `temperature` 0 is greedy decoding. `seed` fixes the request's own random stream, independently of concurrent
    requests. A completion ends with the first of `stop_token_ids`, which it includes. `grammar` constrains its text;
    None is unconstrained. `policy` is the one of `models` that samples; "" is the base model, or the only policy of a
    run without `models`.
    """

    max_tokens: int
    """Maximum number of sampled tokens."""
    temperature: float = 1.0
    top_p: float = 1.0
    """Nucleus sampling; 1 is off. Training refuses other values."""
    top_k: int = 0
    """Sampling from the most likely tokens only; 0 is off."""
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    grammar: Grammar | None = None
    policy: str = ""

    @property
    def truncates(self) -> bool:
        """Return whether recorded log-probabilities would not be those of the trained distribution."""
        return self.top_p < 1.0 or self.top_k > 0

    @property
    def constraint(self) -> Constraint | None:
        """Constraint on the completion's tokens; None if unconstrained."""
        return Constraint(self.grammar, self.stop_token_ids) if self.grammar is not None else None


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion that an engine sampled.

    `logprobs[i]` is the natural log-probability of `token_ids[i]` under the distribution that it was sampled from
    (after temperature and the grammar's mask), with the weights of `weights_version`. For temperature 0 it is the
    log-probability at temperature 1. The versions of a user's own engine are counted on its behalf.
    """

    token_ids: list[int]
    """Sampled tokens, including the stop token that ended the completion."""
    logprobs: list[float]
    """Log-probability of each token."""
    finish_reason: FinishReason
    """`stop` after a stop token, `length` at `max_tokens`."""
    weights_version: int = 0
    """Version of the weights that sampled it."""
    cached_tokens: int = field(default=0, compare=False)
    """Tokens of the prompt that the engine had computed before."""


def stable_seed(*parts: object) -> int:
    """Derive a 63-bit seed from `parts` alone: the same in every process and on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
