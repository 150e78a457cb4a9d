"""Groups of episodes as an engine's samples, and what makes its loss of them that of law 4.

A worker knows one group, so the weights of tokens are made in two parts: those within the group here, and in
`BatchScale` what depends on the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from astune.algorithm import Algorithm, TokenWeights
from astune.schema import Advantage, EpisodeGroup
from astune.trainer.samples import weighted


@dataclass(frozen=True, slots=True)
class Row:
    """A timeline as engines keep it: what was read first, and from the first trained token on the response.

    `mask`, `logprobs` and `advantages` run parallel to `response_ids`. A row of no episode stands for a group whose
    episodes were all rewarded alike.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    advantages: list[float]
    token_weight: float
    """The weight of each trained token within the group."""
    versions: list[int]
    """The version of the weights that sampled each trained token."""
    episode_id: str = ""
    messages: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The messages whose tokens are trained, in their order: a node and the number of its tokens."""
    dropped: bool = False
    """Stands for a group that could not be completed, and counts nothing in the batch."""

    def origin(self) -> dict[str, Any]:
        """The origin of the trained tokens: what a `TrainedRow` has beside the trainer's values of them."""
        return {"episode": self.episode_id, "messages": self.messages, "versions": self.versions}


def rows_of(group: EpisodeGroup, advantages: Sequence[Advantage], algorithm: Algorithm) -> list[Row]:
    """The trained timelines of one group, weighted within it: by what `BatchScale` counts, each counts 1."""
    rows: list[Row] = []
    scheme = algorithm.token_weights
    timelines = weighted([group], [advantages], scheme, constant=algorithm.max_response_tokens)
    n_tokens = sum(len(one.positions) for one in timelines)
    counted = {"episode": 1, "timeline": len(timelines), "token": n_tokens, "constant": 1, "group": 1}[scheme]
    for timeline in timelines:
        first, end = timeline.positions[0], timeline.positions[-1] + 1
        length = end - first
        mask, logprobs, advantages_T = [0] * length, [0.0] * length, [0.0] * length
        trained = zip(timeline.positions, timeline.engine_logprobs, timeline.advantages, strict=True)
        for position, logprob, advantage in trained:
            mask[position - first] = 1
            logprobs[position - first] = logprob
            advantages_T[position - first] = advantage
        rows.append(
            Row(
                timeline.token_ids[:first],
                timeline.token_ids[first:end],
                mask,
                logprobs,
                advantages_T,
                timeline.token_weight * counted,
                timeline.versions,
                timeline.episode_id,
                timeline.messages,
            )
        )
    return rows


def quiet_row(token_id: int, version: int, *, dropped: bool = False) -> Row:
    """The row of a group that teaches nothing: counted, at two tokens. Engines want one of them in the mask."""
    return Row([token_id], [token_id], [1], [0.0], [0.0], 0.0, [version], dropped=dropped)


@dataclass(frozen=True, slots=True)
class BatchScale:
    """Totals of a batch, of which every weight within a group is a fraction.

    Groups without variance are counted, although nothing of them is computed: their advantages of zero belong into the
    mean (see `weighted`).
    """

    groups: int
    quiet_groups: int
    timelines: int
    tokens: int

    @classmethod
    def count(cls, rows: Sequence[tuple[str, int, bool]]) -> BatchScale:
        """Return the scale of rows, given their group, their tokens in the mask, and whether they teach; a quiet
        group's does not."""
        taught = {uid for uid, _, teaches in rows if teaches}
        trained = [tokens for uid, tokens, _ in rows if uid in taught]
        return cls(len(taught), len({uid for uid, _, _ in rows} - taught), len(trained), sum(trained))

    @property
    def share(self) -> float:
        """Factor of the advantages."""
        return self.groups / max(1, self.groups + self.quiet_groups)

    def of_weights(self, scheme: TokenWeights) -> float:
        """Factor of the token weights, so that they are those of the whole batch."""
        counts = {"timeline": self.timelines, "token": self.tokens}
        return 1 / max(1, counts.get(scheme, self.groups))
