"""Test of whether tokens were drawn from the distributions whose probabilities were recorded.

Log-probabilities alone cannot tell: an engine that cuts off the tail and records what tokens had before the cut
agrees with the trainer on every number, and still samples from something else than what is trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from astune.numerics.reading import Reading
from astune.trainer.head import Head

_EDGES = [*(percent / 100 for percent in range(1, 100)), 0.995, 0.999]


@dataclass(frozen=True, slots=True)
class Draws:
    """The place of each of E tokens in its own distribution, likeliest tokens first; all on the CPU.

    `above_E` is the probability of all likelier tokens, `rank_E` their number, `equal_E` the probability of the token
    and of those that are exactly as likely (in bfloat16 there are many).
    """

    above_E: Tensor
    equal_E: Tensor
    rank_E: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, reading: Reading, head: Head) -> Draws:
        above, equal, rank = list[Tensor](), list[Tensor](), list[Tensor]()
        for logprob_BV, token_B in reading.distributions(head):
            own_B1 = logprob_BV.gather(1, token_B[:, None])
            likelier_BV = logprob_BV > own_B1
            alike_BV = logprob_BV == own_B1
            rank.append(likelier_BV.sum(dim=1).cpu())
            prob_BV = logprob_BV.exp_()
            above.append((prob_BV * likelier_BV).sum(dim=1).cpu())
            equal.append((prob_BV * alike_BV).sum(dim=1).cpu())
        return cls(torch.cat(above), torch.cat(equal), torch.cat(rank))

    def evidence(self, kept_E: Tensor | None = None) -> float:
        """Return the evidence that tokens were drawn from another distribution: n means that chance does so once in
        10^n times at most.

        A token's place is where a uniform number had to fall for the token to be drawn, uniform itself whatever the
        distributions were; a cut-off tail leaves none near 1.

            probabilities 0.5 0.3 0.2, the second was drawn   ->   its place is a random number in [0.5, 0.8)

        Args:
            kept_E: the probability that was left of each distribution when its tail was cut off; None for all of it.

        Source: Chernoff's bound for the tail of a binomial, over a fixed grid of places.
        """
        generator = torch.Generator().manual_seed(0)
        place_E = self.above_E + self.equal_E * torch.rand(len(self.above_E), generator=generator)
        if kept_E is not None:
            place_E = place_E / kept_E
        found = torch.searchsorted(place_E.sort().values, torch.tensor(_EDGES), right=True) / len(place_E)
        worst = max(_relative_entropy(share, edge) for share, edge in zip(found.tolist(), _EDGES, strict=True))
        return max(0.0, (len(place_E) * worst - math.log(2 * len(_EDGES))) / math.log(10))


def _relative_entropy(p: float, q: float) -> float:
    """The KL divergence of a coin that shows heads with probability `p` from one with `q`, in nats."""
    heads = p * math.log(p / q) if p > 0 else 0.0
    return heads + ((1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0)


@dataclass(frozen=True, slots=True)
class Cut:
    """A way to leave out unlikely tokens; `value` is a probability for `top_p` and a number of tokens for `top_k`."""

    kind: Literal["top_p", "top_k"]
    value: float

    def __str__(self) -> str:
        return f"{self.kind} {self.value:g}"


CUTS = [
    *(Cut("top_p", percent / 100) for percent in range(30, 100)),
    Cut("top_p", 0.995),
    *(Cut("top_k", n) for n in range(1, 129)),
    *(Cut("top_k", n) for n in (150, 200, 256, 300, 400, 500, 512, 1000)),
]


@torch.no_grad()
def kept_by(cuts: Sequence[Cut], reading: Reading, head: Head) -> Tensor:
    """[E, cuts] the probability that each cut leaves of the distribution that each token was drawn from."""
    top_p = torch.tensor([cut.value for cut in cuts if cut.kind == "top_p"])
    top_k = torch.tensor([int(cut.value) for cut in cuts if cut.kind == "top_k"], dtype=torch.int64)
    is_top_p = torch.tensor([cut.kind == "top_p" for cut in cuts])
    parts: list[Tensor] = []
    for logprob_BV, _ in reading.distributions(head):
        prob_BV = logprob_BV.sort(dim=1, descending=True).values.exp_()
        total_BV = prob_BV.cumsum(dim=1)
        n_kept_BC = torch.empty(len(prob_BV), len(cuts), dtype=torch.int64, device=prob_BV.device)
        bounds_BC = top_p.to(prob_BV).expand(len(prob_BV), -1).contiguous()
        n_kept_BC[:, is_top_p] = torch.searchsorted(total_BV - prob_BV, bounds_BC)
        n_kept_BC[:, ~is_top_p] = top_k.to(prob_BV.device)
        parts.append(total_BV.gather(1, n_kept_BC.clamp_(1, prob_BV.shape[1]) - 1).cpu())
    return torch.cat(parts)
