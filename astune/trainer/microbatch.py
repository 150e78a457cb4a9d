"""A micro-batch: timelines that are computed together, as a prefix tree, and where their loss sits in it.

How a batch is cut into micro-batches bounds memory and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astune.engine.grammar import Bits, Grammars
from astune.schema import TrainerError
from astune.trainer.attention_plan import AttentionPlan, plan_attention
from astune.trainer.head import RowMasks, Targets
from astune.trainer.loss import LossInputs
from astune.trainer.samples import WeightedTimeline
from astune.trainer.trie import build_tree, tree_size


@dataclass(slots=True)
class MicroBatch:
    """T tokens in a tree, R rows of it from which E trained tokens are predicted."""

    token_ids_T: Tensor
    position_ids_T: Tensor
    plan: AttentionPlan
    row_R: Tensor
    targets: Targets
    inputs: LossInputs
    n_read: int
    """Tokens that the timelines have when each is read alone."""


def pack(timelines: Sequence[WeightedTimeline], device: torch.device, grammars: Grammars | None = None) -> MicroBatch:
    """Lay timelines out.

    Args:
        grammars: computes the masks again that tokens were sampled within; None where no timeline has such tokens.
    """
    tree = build_tree([timeline.input_ids for timeline in timelines])
    row_E = np.concatenate(
        [rows[np.asarray(timeline.positions) - 1] for rows, timeline in zip(tree.rows, timelines, strict=True)]
    )
    masks, mask_E = _replay(timelines, grammars)
    # Tokens may follow the same row of the tree under different masks; each mask then has a row of its own.
    n_kinds = len(masks) + 1
    kind_E = row_E * n_kinds + mask_E + 1
    order_E = np.argsort(kind_E, kind="stable")
    kind_R, compact_E = np.unique(kind_E[order_E], return_inverse=True)
    row_R, mask_R = kind_R // n_kinds, kind_R % n_kinds - 1

    def per_token(values: list[list[float]], dtype: type) -> Tensor:
        return torch.from_numpy(np.concatenate(values).astype(dtype)[order_E]).to(device)

    return MicroBatch(
        token_ids_T=torch.from_numpy(tree.token_ids).to(device),
        position_ids_T=torch.from_numpy(tree.position_ids).to(device),
        plan=plan_attention(tree, device),
        row_R=torch.from_numpy(row_R).to(device),
        targets=Targets(
            row_E=torch.from_numpy(compact_E).to(device),
            token_E=per_token([[t.token_ids[index] for index in t.positions] for t in timelines], np.int64),
            masks=RowMasks(masks, mask_R) if masks else None,
        ),
        inputs=LossInputs(
            advantage_E=per_token([[t.advantage] * len(t.positions) for t in timelines], np.float32),
            weight_E=per_token([[t.token_weight] * len(t.positions) for t in timelines], np.float32),
            engine_logprob_E=per_token([t.engine_logprobs for t in timelines], np.float32),
        ),
        n_read=sum(timeline.positions[-1] for timeline in timelines),
    )


def _replay(timelines: Sequence[WeightedTimeline], grammars: Grammars | None) -> tuple[list[Bits], NDArray[np.int64]]:
    """The masks that trained tokens were sampled within, each once, and which of them each token has; -1 for none."""
    masks: list[Bits] = []
    known: dict[bytes, int] = {}
    mask_E: list[NDArray[np.int64]] = []
    for timeline in timelines:
        mask_T = np.full(len(timeline.token_ids), -1)
        for run in timeline.constrained:
            if grammars is None:
                raise TrainerError("tokens were sampled under a grammar", hint="this is a defect of astune")
            replayed = grammars.masks(run.constraint, timeline.token_ids[run.start : run.end])
            for position, bits in enumerate(replayed, start=run.start):
                mask_T[position] = known.setdefault(bits.tobytes(), len(masks))
                if mask_T[position] == len(masks):
                    masks.append(bits)
        mask_E.append(mask_T[timeline.positions])
    return masks, np.concatenate(mask_E)


def split(timelines: Sequence[WeightedTimeline], max_tokens: int) -> Iterator[list[WeightedTimeline]]:
    """Cut a batch so that no part's tree has more than `max_tokens` tokens.

    Groups stay whole and share a micro-batch while they fit, for groups share beginnings too. One that does not
    fit alone is cut between timelines; a single timeline is never cut, however long.
    """
    part: list[WeightedTimeline] = []
    for group in _groups(timelines):
        if part and _size([*part, *group]) > max_tokens:
            yield part
            part = []
        if _size(group) <= max_tokens:
            part += group
        else:
            yield from _split_group(group, max_tokens)
    if part:
        yield part


def _groups(timelines: Sequence[WeightedTimeline]) -> Iterator[list[WeightedTimeline]]:
    by_group: dict[int, list[WeightedTimeline]] = {}
    for timeline in timelines:
        by_group.setdefault(timeline.group, []).append(timeline)
    yield from by_group.values()


def _split_group(group: list[WeightedTimeline], max_tokens: int) -> Iterator[list[WeightedTimeline]]:
    """Neighbours in sorted order share the most, so they stay together."""
    part: list[WeightedTimeline] = []
    for timeline in sorted(group, key=lambda timeline: timeline.token_ids):
        if part and _size([*part, timeline]) > max_tokens:
            yield part
            part = []
        part.append(timeline)
    yield part


def _size(timelines: Sequence[WeightedTimeline]) -> int:
    return tree_size([timeline.input_ids for timeline in timelines])
