"""The advantage estimator that verl is given: it says what `rows.py` has made, scaled to the batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from astune.backbone.verl.rows import BatchScale
from astune.trainer.samples import TokenWeights

NAME = "astune"
PADDING = "pad"
"""How the group's name of a row begins that verl adds to fill a batch."""


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
    """What verl multiplies its ratios with, and the same as returns.

    Args:
        token_level_rewards: [B, T], advantage times weight within the group.
        response_mask: [B, T], 1 where a token is trained.
        index: the group of each row.
    """
    trained = [int(n) for n in response_mask.sum(dim=-1).tolist()]
    real = [(uid, n) for uid, n in zip(index, trained, strict=True) if not str(uid).startswith(PADDING)]
    scale = BatchScale.count([uid for uid, _ in real], [n for _, n in real])
    scaled = token_level_rewards * response_mask * scale.factor(scheme)
    return scaled, scaled
