"""The advantage estimator that verl is given: it says what `rows.py` has made, scaled to the batch.

verl sums `- importance * min(ratio * A, clip(ratio) * A)` over the tokens of a batch (`loss_agg_mode: token-sum`).
Law 4's loss is a weighted sum of the same terms, and a weight is positive: so what verl is given as a token's advantage
is its advantage times its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from astune.algorithm import TokenWeights
from astune.backbone.cluster.rows import BatchScale, Row

NAME = "astune"
PADDING, QUIET = "pad", "quiet"
"""Prefix of the group name of a row without effect (of a dropped group, or verl's padding of a batch), or of a group
without a gradient."""


def group_name(uid: str, row: Row) -> str:
    """Group of a row, as passed to verl."""
    if row.dropped:
        return f"{PADDING}{uid}"
    return uid if row.episode_id else f"{QUIET}{uid}"


def register(scheme: TokenWeights) -> None:
    """Make it known to verl in this process under `NAME`."""
    import_module("verl.trainer.ppo.core_algos").register_adv_est(NAME)(partial(advantages, scheme=scheme))


def advantages(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[str],
    *,
    scheme: TokenWeights,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Return the factors of verl's ratios, and the same as returns.

    Args:
        token_level_rewards: [B, T], advantage times weight within the group.
        response_mask: [B, T], 1 where a token is trained.
        index: the group of each row.
    """
    rewards = token_level_rewards * response_mask
    counted = [
        (uid, int(n), not uid.startswith(QUIET))
        for uid, n in zip(index, response_mask.sum(dim=-1).tolist(), strict=True)
        if not uid.startswith(PADDING)
    ]
    scale = BatchScale.count(counted)
    scaled = rewards * (scale.share * scale.of_weights(scheme))
    return scaled, scaled
