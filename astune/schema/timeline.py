"""A timeline: one root-to-leaf path of a forest, flattened for a trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from astune.schema.grammar import Constraint


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `[start, end)` of a timeline that come from one message and were read, or were sampled.

    `mask_reason` is why sampled tokens carry no loss in this timeline; None if they do, or if the tokens were read.
    `constraint` is what sampled tokens were sampled under; None if unconstrained.
    """

    start: int
    end: int
    node_id: int
    role: str
    agent: str
    sampled: bool
    mask_reason: str | None = None
    weights_version: int | None = None
    constraint: Constraint | None = None


@dataclass(slots=True)
class Timeline:
    """Four parallel sequences over the tokens of one timeline.

    `loss_mask[t]` is True if token t was sampled and is trained; `logprobs[t]` is what the engine recorded when it
    sampled token t, and 0.0 if the token was read.
    """

    token_ids: list[int]
    loss_mask: list[bool]
    logprobs: list[float]
    agent: str
    spans: list[Span]

    @property
    def n_trained(self) -> int:
        return sum(self.loss_mask)


def trained_and_masked(timelines: Iterable[Timeline]) -> tuple[int, Counter[str]]:
    """Count the sampled tokens of an episode that some timeline trains, and those masked, by reason.

    Each sampled message counts once, however many timelines pass through it (law 3).
    """
    accounts: dict[int, tuple[str | None, int]] = {}
    for timeline in timelines:
        for span in timeline.spans:
            if span.sampled and (span.mask_reason is None or span.node_id not in accounts):
                accounts[span.node_id] = span.mask_reason, span.end - span.start
    trained, masked = 0, Counter[str]()
    for reason, n_tokens in accounts.values():
        if reason is None:
            trained += n_tokens
        else:
            masked[reason] += n_tokens
    return trained, masked
