"""Attention plan of a prefix tree, built once and used by every layer.

For the compiled kernels as tiles: a few tokens of a segment, and the ranges of the layout that they see. For
FlexAttention as a mask of blocks. For matrix products as a few dense batches, for which the tree is recut: beginnings
too short to be worth a batch of their own are repeated in each of their branches, and long segments are cut into a
chain; neither changes what a token sees. The branches of one parent then form a batch: each row of it attends to [the
parent's whole path; itself causally].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from astune.engine.local.tree_attention import Range, Tiles
from astune.trainer.trie import Ints, PrefixTree, Segment

BLOCK = 128
"""Tokens of a side of FlexAttention's blocks, of which a kernel skips those that are masked as a whole."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Rules for splitting the tree into batches. A matter of speed only."""

    shortest_shared: int = 32
    """Tokens of a shared beginning below which repeating its attention is cheaper than another batch."""
    longest_piece: int = 512
    """Tokens of a piece; what a longer one would compute in vain above the diagonal grows with its square."""
    scores_per_batch: int = 1 << 20
    """Query-key pairs of one batch and head: with nine heads in bfloat16 18 MiB, which stays near the cores."""
    padding_waste: float = 0.3
    """Part of a batch's longest branch that its shortest may lack."""


@dataclass(frozen=True, slots=True)
class BranchBatch:
    """n branches of one parent, padded to L tokens, behind the A tokens of the parent's path.

    A branch may repeat tokens that another one owns; only an owner's result is used.
    """

    ancestor_A: Tensor
    """Places in the layout of the tokens that all of the branches see."""
    row_nL: Tensor
    """[n, L] places in the layout; any where padded."""
    foreign: Tensor
    """Indices into the flattened [n * L] that are padding or another branch's own."""
    own: Tensor
    """The other indices into the flattened [n * L]: every token of the tree is owned exactly once."""
    own_row: Tensor
    """Places in the layout of `own`."""
    padding: Tensor
    """Indices into the flattened [n * L] that are padding."""


class AttentionPlan:
    """Every form is made when first asked for."""

    def __init__(self, tree: PrefixTree, device: torch.device, limits: Limits) -> None:
        self._segments = tree.segments
        self._device = device
        self._limits = limits
        self._tiles: dict[int, Tiles] = {}
        self.longest_sequence = int(tree.position_ids.max()) + 1

    @cached_property
    def batches(self) -> list[BranchBatch]:
        pieces = _pieces(self._segments, self._limits)
        siblings: dict[int | None, list[_Piece]] = {}
        for piece in pieces:
            siblings.setdefault(piece.parent, []).append(piece)
        batches: list[BranchBatch] = []
        for parent, branches in siblings.items():
            ancestor_A = _path(pieces, parent)
            for bucket in _buckets(branches, len(ancestor_A), self._limits):
                batches.append(_batch(ancestor_A, bucket, self._device))
        return batches

    @cached_property
    def block_mask(self) -> BlockMask:
        """Token q sees token k where `k <= q < end[k]`: the layout is depth-first, so k's descendants end there."""
        return _block_mask(self._segments, self._device)

    def tiles(self, group: int) -> Tiles:
        """Tiles for queries of which each token has `group`."""
        if group not in self._tiles:
            self._tiles[group] = _tiles(self._segments, group)
        return self._tiles[group]


def plan_attention(tree: PrefixTree, device: torch.device, limits: Limits | None = None) -> AttentionPlan:
    return AttentionPlan(tree, device, limits if limits is not None else Limits())


def _tiles(segments: Sequence[Segment], group: int) -> Tiles:
    seen: list[list[Range]] = []
    for segment in segments:
        ranges = list(seen[segment.parent]) if segment.parent is not None else []
        if ranges and ranges[-1][1] == segment.start:
            ranges[-1] = ranges[-1][0], segment.end
        else:
            ranges.append((segment.start, segment.end))
        seen.append(ranges)
    return Tiles.of([(segment.start, segment.end) for segment in segments], seen, group)


def _block_mask(segments: Sequence[Segment], device: torch.device) -> BlockMask:
    n_tokens = segments[-1].end
    n_blocks = -(-n_tokens // BLOCK)
    end_T = np.zeros(n_blocks * BLOCK, np.int64)
    for segment in segments:
        end_T[segment.start : segment.end] = segment.descendants_end
    start_B = np.arange(n_blocks) * BLOCK
    before_BB = start_B[None] < start_B[:, None]
    seen_BB = before_BB & (end_T.reshape(-1, BLOCK).max(1)[None] > start_B[:, None])
    whole_BB = seen_BB & (end_T.reshape(-1, BLOCK).min(1)[None] >= np.minimum(start_B + BLOCK, n_tokens)[:, None])
    end = torch.from_numpy(end_T).to(device)

    def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end[key])

    partly = _listed(seen_BB & ~whole_BB | np.eye(n_blocks, dtype=bool), device)
    wholly = _listed(whole_BB, device)
    lengths = (n_tokens, n_tokens)
    return BlockMask.from_kv_blocks(*partly, *wholly, BLOCK_SIZE=BLOCK, mask_mod=is_seen, seq_lengths=lengths)


def _listed(is_BB: NDArray[np.bool_], device: torch.device) -> tuple[Tensor, Tensor]:
    """The number of key blocks of each block of queries, [1, 1, B], and their indices, [1, 1, B, B], those first."""
    counts, order = is_BB.sum(axis=1), np.argsort(~is_BB, axis=1, kind="stable")
    on_device = partial(torch.tensor, dtype=torch.int32, device=device)
    return on_device(counts)[None, None], on_device(order)[None, None]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Places in the layout, of which those from `owned_from` on are this piece's own."""

    rows: Ints
    owned_from: int
    parent: int | None


def _pieces(segments: Sequence[Segment], limits: Limits) -> list[_Piece]:
    """Recut the segments. A parent comes before its children, in `segments` and in the result."""
    pieces: list[_Piece] = []
    last_piece: dict[int, int | None] = {}
    repeated: dict[int, tuple[Ints, int]] = {}
    for index, segment in enumerate(segments):
        rows, owned_from, parent = np.arange(segment.start, segment.end), 0, None
        if segment.parent is not None:
            parent = last_piece[segment.parent]
            if segment.parent in repeated:
                prefix, prefix_owned_from = repeated[segment.parent]
                rows, owned_from = np.concatenate([prefix, rows]), prefix_owned_from
                # The first branch owns what it repeats, the others do not.
                repeated[segment.parent] = prefix, len(prefix)
        if segment.descendants_end > segment.end and len(rows) < limits.shortest_shared:
            last_piece[index], repeated[index] = parent, (rows, owned_from)
            continue
        for start in range(0, len(rows), limits.longest_piece):
            part = rows[start : start + limits.longest_piece]
            pieces.append(_Piece(part, min(max(owned_from - start, 0), len(part)), parent))
            parent = len(pieces) - 1
        last_piece[index] = parent
    return pieces


def _path(pieces: Sequence[_Piece], index: int | None) -> Ints:
    rows: list[Ints] = []
    while index is not None:
        rows.append(pieces[index].rows)
        index = pieces[index].parent
    return np.concatenate(rows[::-1]) if rows else np.empty(0, np.int64)


def _buckets(branches: Sequence[_Piece], n_ancestors: int, limits: Limits) -> Iterator[list[_Piece]]:
    """Branches of about the same length, and not too many."""
    bucket: list[_Piece] = []
    for branch in sorted(branches, key=lambda branch: -len(branch.rows)):
        if bucket:
            longest = len(bucket[0].rows)
            full = (len(bucket) + 1) * longest * (n_ancestors + longest) > limits.scores_per_batch
            if full or len(branch.rows) < (1 - limits.padding_waste) * longest - 8:
                yield bucket
                bucket = []
        bucket.append(branch)
    yield bucket


def _batch(ancestor_A: Ints, bucket: Sequence[_Piece], device: torch.device) -> BranchBatch:
    longest = len(bucket[0].rows)
    row_nL = np.zeros((len(bucket), longest), np.int64)
    own_nL = np.zeros((len(bucket), longest), np.bool_)
    padding_nL = np.ones((len(bucket), longest), np.bool_)
    for number, piece in enumerate(bucket):
        row_nL[number, : len(piece.rows)] = piece.rows
        own_nL[number, piece.owned_from : len(piece.rows)] = True
        padding_nL[number, : len(piece.rows)] = False

    def on_device(array: Ints) -> Tensor:
        return torch.from_numpy(array).to(device)

    return BranchBatch(
        ancestor_A=on_device(ancestor_A),
        row_nL=on_device(row_nL),
        foreign=on_device(np.flatnonzero(~own_nL)),
        own=on_device(np.flatnonzero(own_nL)),
        own_row=on_device(row_nL[own_nL]),
        padding=on_device(np.flatnonzero(padding_nL)),
    )
