"""The interface of an algorithm, and the trained tokens that it is asked about.

An algorithm knows rewards and log-probabilities. It knows neither how tokens are packed nor what the engine sampled
with: KL and entropy terms, the correction for the engine's arithmetic and the sum over tokens are shared by all
algorithms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from astune.schema import AstuneError, Episode, TrainerError, described, own_code, place_of, shown_value

if TYPE_CHECKING:
    from torch import Tensor

TokenWeights = Literal["episode", "timeline", "token", "constant", "group"]
"""Unit of equal weight in a batch's loss; `astune.trainer.samples.weighted` has the worked example."""

LearnsFrom = Literal["rollouts", "demonstrations", "preferences"]
"""`demonstrations` are the tasks' own answers, `preferences` a chosen and a rejected one of each: nothing is sampled,
and nothing corrects for how it was sampled."""


class Preference(NamedTuple):
    """Constants of the preference pair of each of E tokens, without a gradient.

    `margin_E` is log policy - log starting policy, summed over the chosen answer's tokens, less the same of the
    rejected one's; `n_tokens_E` the number of both answers' tokens.
    """

    margin_E: Tensor
    n_tokens_E: Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """E trained tokens, or a part of them; parallel tensors of float32 or more.

    Only `logprob_E`, the policy's log-probabilities, has a gradient. `old_logprob_E` are the trainer's own before the
    step's first update. `mean_log_ratio_E` is, for each token, the mean of log policy - log old policy over its
    sequence, which is a timeline's trained tokens; None unless the algorithm has `needs_sequence_ratio`.
    `preference` is None unless the algorithm learns from preferences.
    """

    logprob_E: Tensor
    old_logprob_E: Tensor
    advantage_E: Tensor
    mean_log_ratio_E: Tensor | None = None
    preference: Preference | None = None

    @property
    def ratio(self) -> Tensor:
        """Policy / old policy of each token; 1 on the first update of a step."""
        return (self.logprob_E - self.old_logprob_E).exp()

    @property
    def sequence_ratio(self) -> Tensor:
        """The same of each token's sequence: the geometric mean of its tokens' ratios.

        Its gradient with respect to each token's log-probability is the ratio itself, so that a mean over a sequence's
        tokens has the gradient of the sequence's ratio.

        Source: Zheng et al. 2025, arXiv 2507.18071, eq. 7 and 14.
        """
        if self.mean_log_ratio_E is None:
            raise TrainerError(
                "the algorithm's token_loss reads sequence_ratio, which was not computed",
                hint="set `needs_sequence_ratio = True` in the algorithm's class",
            )
        return (self.mean_log_ratio_E + self.logprob_E - self.logprob_E.detach()).exp()


class TokenLoss(NamedTuple):
    """The loss of each token, and a mask of those that a limit keeps from moving further, for the metric."""

    loss_E: Tensor
    clipped_E: Tensor | None = None


class Algorithm(ABC):
    """Interface that turns rewards into advantages, and advantages into a loss.

    `trainer.algorithm.params` are the arguments of its `__init__`, which has to have a default for each of them.
    """

    token_weights: TokenWeights = "episode"
    """Unit of equal weight in the loss; `trainer.loss.token_weights` overrides it."""
    baseline: Literal["group", "batch"] = "group"
    """Episodes that one is compared with: those of its task (`group`), or all of a step (`batch`)."""
    learns_from: LearnsFrom = "rollouts"
    """Source of training episodes."""
    needs_sequence_ratio: bool = False
    """True where `token_loss` reads `Tokens.sequence_ratio`."""
    max_response_tokens: int = 512
    """`rollout.max_response_length_in_one_turn`, set where the algorithm is loaded."""

    @abstractmethod
    def advantages(self, reward_BK: Tensor) -> Tensor:
        """Advantages of episodes, [B, K] like the rewards and NaN where these are.

        Args:
            reward_BK: in float64, one row a task (a part of it, where parts of episodes have rewards of their own), one
                column an episode; NaN where an episode has none. A single row unless `baseline` is "batch".
        """

    def shaping(self, episode: Episode) -> float:
        """Term added to an episode's reward before it is compared; the recorded reward stays.

        Where targets have rewards of their own, each is asked for with the messages of that target as the trained ones;
        where turns have, with those from the turn on.
        """
        return 0.0

    @abstractmethod
    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """The loss of each token, still to be multiplied by its weight."""


@contextmanager
def called(algorithm: Algorithm, method: str) -> Iterator[None]:
    """Run a method of the algorithm. Raises TrainerError if a user's own code in it fails."""
    try:
        yield
    except AstuneError:
        raise
    except Exception as cause:
        place = place_of(cause)
        if not place:
            raise
        name = f"{type(algorithm).__name__}.{method}"
        raise TrainerError(f"{name}{place}: {described(cause)}", hint=own_code(cause, "algorithm")) from cause


def loss_of(algorithm: Algorithm, tokens: Tokens) -> TokenLoss:
    """Return the algorithm's loss of each token. Raises TrainerError if it fails, or returns anything else."""
    with called(algorithm, "token_loss"):
        returned = algorithm.token_loss(tokens)
    shape = getattr(returned.loss_E, "shape", None) if isinstance(returned, TokenLoss) else None
    if shape != tokens.logprob_E.shape:
        found = shown_value(returned) if shape is None else f"a loss of shape {[*shape]}"
        raise TrainerError(
            f"{type(algorithm).__name__}.token_loss returned {found} for {len(tokens.logprob_E)} tokens",
            hint="return TokenLoss(loss_E), with one loss for each token, neither summed nor averaged",
        )
    return returned
