"""GSPO: the ratio of whole sequences."""

from __future__ import annotations

from astune.algorithm.base import TokenLoss, Tokens
from astune.algorithm.clipped import clipped_loss
from astune.algorithm.grpo import GRPO


class GSPO(GRPO):
    """Group sequence policy optimisation: rewards are given to sequences, so their ratio is what is clipped.

        log ratios of a sequence's tokens 0.02 -0.01 0.05   ->   ratio exp(0.02) for all three, clipped as one

    The ratio is the geometric mean of the tokens' ratios, hence the narrow limits. A sequence is what is trained of one
    timeline. On the first update of a step it is 1, as GRPO's is: set `trainer.loss.updates_per_step` above 1.

    Source: Zheng et al. 2025, arXiv 2507.18071, eq. 5 and 7, in the token form of eq. 13 and 14, which has the same
    value and gradient; section 5.1 for the limits.
    """

    needs_sequence_ratio = True

    def __init__(self, *, normalise_advantages: bool = True, clip_low: float = 3e-4, clip_high: float = 4e-4) -> None:
        super().__init__(normalise_advantages=normalise_advantages, clip_low=clip_low, clip_high=clip_high)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        ratio_E = tokens.sequence_ratio
        return clipped_loss(ratio_E, tokens.advantage_E, clip_low=self.clip_low, clip_high=self.clip_high)
