"""DAPO: the mean over tokens, a wider upper limit, and a penalty on overlong answers."""

from __future__ import annotations

from astune.algorithm.base import TokenWeights
from astune.algorithm.grpo import GRPO
from astune.schema import Episode


class DAPO(GRPO):
    """Decoupled clip and dynamic sampling: GRPO with all tokens of a batch alike, and soft overlong punishment.

        overlong_buffer 0.2 of at most 100 tokens, overlong_penalty 1
        80 tokens -> 0        90 tokens -> -0.5        100 tokens -> -1       added to the reward

    The length of an episode is that of its longest turn, and the most it may have
    `rollout.max_response_length_in_one_turn`. The paper's dynamic sampling is
    `trainer.dynamic_sampling.max_extra_tasks`, which any algorithm may have.

    Args:
        overlong_buffer: the last part of the allowed length, in which the penalty grows; the paper's is 4,096 of
            20,480 tokens.
        overlong_penalty: what the longest answers lose; 0 switches it off.

    Source: Yu et al. 2025, arXiv 2503.14476, eq. 8 and 13.
    """

    token_weights: TokenWeights = "token"

    def __init__(
        self,
        *,
        normalise_advantages: bool = True,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        overlong_buffer: float = 0.2,
        overlong_penalty: float = 1.0,
    ) -> None:
        super().__init__(normalise_advantages=normalise_advantages, clip_low=clip_low, clip_high=clip_high)
        if not 0 < overlong_buffer <= 1:
            raise ValueError(f"overlong_buffer is {overlong_buffer:g}, and is a part of the length: above 0, at most 1")
        self.overlong_buffer = overlong_buffer
        self.overlong_penalty = overlong_penalty

    def shaping(self, episode: Episode) -> float:
        longest = max((node.n_sampled for node in episode.trained_messages), default=0)
        buffer = self.overlong_buffer * self.max_response_tokens
        excess = longest - (self.max_response_tokens - buffer)
        return -self.overlong_penalty * min(1.0, max(0.0, excess / buffer))
