"""The report of a step that an engine trained: its values of each trained token, under the names that all backbones
share.

Advantages and weights are made from the episodes as for the local trainer, and its loss is computed of the engine's
values, so the metrics are the local trainer's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from astune.backbone.cluster.messages import TrainedRow
from astune.schema import TrainerError, TrainingBatch
from astune.trainer.loss import LossInputs, PolicyLoss
from astune.trainer.own_logprobs import OwnLogprobs
from astune.trainer.samples import WeightedTimeline, weighted
from astune.trainer.step_report import StepReport

_NAMES = {"actor/grad_norm": "grad_norm"}
"""The engine's names and ours, of what it alone knows."""


def n_tokens(rows: Iterable[TrainedRow]) -> int:
    """Tokens that the engine trained."""
    return sum(len(row.old_log_probs) for row in rows)


def report_of(
    rows: Sequence[TrainedRow],
    batch: TrainingBatch,
    loss: PolicyLoss,
    *,
    metrics: Mapping[str, float],
    lr: float | None,
) -> StepReport:
    """The report of an engine's update on `batch`, of which `rows` are all trained timelines.

    Args:
        loss: the configured one.
        metrics: the engine's own.
        lr: the learning rate of the step, where it is known.

    Raises:
        TrainerError: the engine trained other tokens than those of the batch, or its gradient is not finite.
    """
    timelines = weighted(
        batch.groups,
        batch.advantages,
        loss.algorithm.token_weights,
        share=len(batch.groups) / (len(batch.groups) + len(batch.flat)),
        constant=loss.algorithm.max_response_tokens,
    )
    timelines = _in_order(rows, timelines, batch.step)
    logprob_E = _joined(row.old_log_probs for row in rows)
    inputs = LossInputs(
        advantage_E=_joined(one.advantages for one in timelines),
        weight_E=_joined([one.token_weight] * len(one.positions) for one in timelines),
        engine_logprob_E=_joined(row.rollout_log_probs for row in rows),
        version_E=torch.tensor([*chain.from_iterable(row.versions for row in rows)]),
        sequence_E=torch.tensor([number for number, one in enumerate(timelines) for _ in one.positions]),
        reference_logprob_E=_joined(row.ref_log_prob or [] for row in rows)
        if rows[0].ref_log_prob is not None
        else None,
    )
    if loss.algorithm.needs_sequence_ratio:
        inputs = inputs.with_sequence_ratios(logprob_E)
    _, sums = loss(logprob_E, _joined(row.entropy for row in rows), inputs)
    more = {name: metrics[engine_name] for engine_name, name in _NAMES.items() if engine_name in metrics}
    if not math.isfinite(more.get("grad_norm", 0.0)):
        raise TrainerError(f"in step {batch.step} the gradient is not finite", hint="lower trainer.optim.lr")
    if lr is not None:
        more["lr"] = lr
    read = float(sum(len(one.input_ids) for one in timelines))
    return StepReport.of(batch, sums, _by_message(rows), version=batch.step - 1, read_tokens=read, **more)


def _in_order(rows: Sequence[TrainedRow], timelines: Sequence[WeightedTimeline], step: int) -> list[WeightedTimeline]:
    """The timeline of each row."""
    known = {(one.episode_id, *one.messages): one for one in timelines}
    found = [known.pop((row.episode, *row.messages), None) for row in rows]
    kept = [one for one in found if one is not None]
    if known or len(kept) != len(rows):
        raise TrainerError(
            f"step {step} trained other tokens than those of its {len(timelines)} timelines",
            hint="this is a defect of astune",
        )
    return kept


def _joined(parts: Iterable[Sequence[float]]) -> Tensor:
    return torch.tensor([*chain.from_iterable(parts)], dtype=torch.float64)


def _by_message(rows: Iterable[TrainedRow]) -> OwnLogprobs:
    found: OwnLogprobs = {}
    for row in rows:
        values = np.asarray(row.old_log_probs, dtype=np.float32)
        messages, start = found.setdefault(row.episode, {}), 0
        for node_id, length in row.messages:
            messages[node_id] = values[start : start + length]
            start += length
    return found
