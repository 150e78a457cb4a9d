"""A micro-batch: timelines that are computed together, and where their loss sits in it.

They are laid out as a prefix tree where that saves tokens, else one after another. How a batch is cut into
micro-batches and laid out decides time and memory, and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astune.engine.local.grammar import Bits, Grammars
from astune.engine.local.slots import common_prefix
from astune.schema import TrainerError
from astune.trainer.attention_plan import AttentionPlan, plan_attention
from astune.trainer.head import RowMasks, Targets
from astune.trainer.loss import LossInputs
from astune.trainer.samples import WeightedTimeline
from astune.trainer.trie import Ints, build_rows, build_tree, tree_size

Layout = Literal["tree", "rows"]

LEAST_SAVING = 0.05
"""The part of the tokens that a tree has to save to be chosen; below, its attention may cost what it saves."""


@dataclass(slots=True)
class MicroBatch:
    """T tokens laid out, R rows of them from which E trained tokens are predicted."""

    token_ids_T: Tensor
    position_ids_T: Tensor
    plan: AttentionPlan
    rows: Sequence[Ints]
    """Places of each timeline's tokens in the layout."""
    row_R: Tensor
    targets: Targets
    inputs: LossInputs
    n_read: int
    """Tokens that the timelines have when each is read alone."""
    timelines: Sequence[WeightedTimeline]
    order_E: NDArray[np.int64]
    """Map each of E tokens to the timelines' trained tokens, one timeline after another."""

    def by_timeline(self, values_E: Tensor) -> Sequence[Tensor]:
        """Part values of its trained tokens by timeline, each in the order of the timeline's `positions`."""
        values = torch.empty_like(values_E)
        values[torch.from_numpy(self.order_E).to(values_E.device)] = values_E
        return values.split([len(timeline.positions) for timeline in self.timelines])

    def per_token(self, values: Sequence[Tensor]) -> Tensor:
        """Return what `by_timeline` parts [E]."""
        return torch.cat(list(values))[torch.from_numpy(self.order_E).to(values[0].device)]


def pack(
    timelines: Sequence[WeightedTimeline],
    device: torch.device,
    grammars: Grammars | None = None,
    *,
    layout: Layout | None = None,
) -> MicroBatch:
    """Lay timelines out, by default as `choose_layout` says.

    Args:
        grammars: computes the masks again that tokens were sampled within; None where no timeline has such tokens.
    """
    sequences = [timeline.input_ids for timeline in timelines]
    n_read = sum(map(len, sequences))
    tree = build_tree(sequences)
    if (layout or choose_layout(n_read, len(tree))) == "rows":
        tree = build_rows(sequences)
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

    def per_token(values: Sequence[Sequence[float]], dtype: type) -> Tensor:
        return torch.from_numpy(np.concatenate(values).astype(dtype)[order_E]).to(device)

    return MicroBatch(
        token_ids_T=torch.from_numpy(tree.token_ids).to(device),
        position_ids_T=torch.from_numpy(tree.position_ids).to(device),
        plan=plan_attention(tree, device),
        rows=tree.rows,
        row_R=torch.from_numpy(row_R).to(device),
        targets=Targets(
            row_E=torch.from_numpy(compact_E).to(device),
            token_E=per_token([[t.token_ids[index] for index in t.positions] for t in timelines], np.int64),
            masks=RowMasks(masks, mask_R) if masks else None,
        ),
        inputs=LossInputs(
            advantage_E=per_token([t.advantages for t in timelines], np.float32),
            weight_E=per_token([[t.token_weight] * len(t.positions) for t in timelines], np.float32),
            engine_logprob_E=per_token([t.engine_logprobs for t in timelines], np.float32),
            version_E=per_token([t.versions for t in timelines], np.int64),
            sequence_E=per_token([[number] * len(t.positions) for number, t in enumerate(timelines)], np.int64),
        ),
        n_read=n_read,
        timelines=timelines,
        order_E=order_E,
    )


def choose_layout(n_read: int, n_tree: int) -> Layout:
    """Choose the layout of sequences of `n_read` tokens in total, of which a tree would hold `n_tree`.

    8 answers of 100 tokens to a question of 300: 3,200 and 1,100 tokens      -> tree
    8 answers to 8 questions that begin with the same four words              -> rows
    """
    return "tree" if n_tree <= (1 - LEAST_SAVING) * n_read else "rows"


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


def split(
    timelines: Sequence[WeightedTimeline], max_tokens: int, *, layout: Layout | None = None
) -> Iterator[list[WeightedTimeline]]:
    """Cut a batch so that no part has more than `max_tokens` tokens when it is laid out, by default as by `pack`.

    Groups stay whole and share a micro-batch while they fit, for groups share beginnings too. One that does not
    fit alone is cut between timelines; a single timeline is never cut, however long.
    """
    part: list[WeightedTimeline] = []
    for group in _groups(timelines):
        if part and _size([*part, *group]).laid_out(layout) > max_tokens:
            yield part
            part = []
        if _size(group).laid_out(layout) <= max_tokens:
            part += group
        else:
            yield from _split_group(group, max_tokens, layout)
    if part:
        yield part


def _groups(timelines: Sequence[WeightedTimeline]) -> Iterator[list[WeightedTimeline]]:
    by_group: dict[int, list[WeightedTimeline]] = {}
    for timeline in timelines:
        by_group.setdefault(timeline.group, []).append(timeline)
    yield from by_group.values()


def _split_group(
    group: list[WeightedTimeline], max_tokens: int, layout: Layout | None
) -> Iterator[list[WeightedTimeline]]:
    """Neighbours in sorted order share the most, so they stay together."""
    part: list[WeightedTimeline] = []
    size = _Size(0, 0)
    previous = np.empty(0, np.int64)
    for timeline in sorted(group, key=lambda timeline: timeline.input_ids):
        sequence = np.asarray(timeline.input_ids, np.int64)
        longer = _Size(size.n_read + len(sequence), size.n_tree + len(sequence) - common_prefix(previous, sequence))
        if part and longer.laid_out(layout) > max_tokens:
            yield part
            part, longer = [], _Size(len(sequence), len(sequence))
        part.append(timeline)
        size, previous = longer, sequence
    yield part


@dataclass(frozen=True, slots=True)
class _Size:
    """Tokens of some sequences when each is read alone, and in a tree."""

    n_read: int
    n_tree: int

    def laid_out(self, layout: Layout | None) -> int:
        return self.n_tree if (layout or choose_layout(self.n_read, self.n_tree)) == "tree" else self.n_read


def _size(timelines: Sequence[WeightedTimeline]) -> _Size:
    sequences = [timeline.input_ids for timeline in timelines]
    return _Size(sum(map(len, sequences)), tree_size(sequences))
