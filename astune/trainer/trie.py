"""The prefix tree of a micro-batch: every shared beginning once, laid out flat without padding.

A segment is an edge of the tree. Segments lie in depth-first order, so that what descends from a segment
follows it without a gap. The tree knows token ids only, and nothing of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astune.engine.local.slots import common_prefix

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens `[start, end)` of the layout, which follow `parent` and are followed by the descendants
    `[end, descendants_end)`; `depth` is the position of its first token in its sequences."""

    start: int
    end: int
    depth: int
    parent: int | None
    descendants_end: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Sequences as a tree.

        A B C D      gives the layout  A B C D E F     of the segments  [A B] -> [C D], [E F]
        A B E F      with positions    0 1 2 3 2 3

    `rows[i][d]` is the place in the layout of the token at depth d of sequence i, as it was given.
    """

    token_ids: Ints
    position_ids: Ints
    segments: list[Segment]
    rows: list[Ints]

    def __len__(self) -> int:
        return len(self.token_ids)


def build_tree(sequences: Sequence[Sequence[int]]) -> PrefixTree:
    """Merge equal beginnings, however many levels deep; equal sequences become one."""
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    order = sorted(range(len(arrays)), key=lambda index: list(sequences[index]))
    runs: list[_Run] = []
    open_runs: list[_Run] = []
    rows: list[Ints] = [np.empty(0, np.int64)] * len(arrays)
    path = np.empty(0, np.int64)
    previous = np.empty(0, np.int64)
    n_tokens = 0
    for index in order:
        sequence = arrays[index]
        shared = common_prefix(previous, sequence)
        while open_runs and open_runs[-1].depth >= shared:
            open_runs.pop()
        fresh = len(sequence) - shared
        path = np.concatenate([path[:shared], np.arange(n_tokens, n_tokens + fresh)])
        rows[index] = path
        if fresh:
            owner = open_runs[-1] if open_runs else None
            if owner is not None:
                owner.cuts.add(shared)
            run = _Run(sequence[shared:], n_tokens, shared, owner, {shared + fresh})
            runs.append(run)
            open_runs.append(run)
            n_tokens += fresh
        previous = sequence
    return PrefixTree(
        token_ids=np.concatenate([run.token_ids for run in runs]),
        position_ids=np.concatenate([np.arange(run.depth, run.depth + len(run.token_ids)) for run in runs]),
        segments=_segments(runs, n_tokens),
        rows=rows,
    )


def build_rows(sequences: Sequence[Sequence[int]]) -> PrefixTree:
    """The same sequences one after another, each a tree of its own: nothing is shared."""
    ends = np.cumsum([len(sequence) for sequence in sequences]).tolist()
    starts = [0, *ends[:-1]]
    return PrefixTree(
        token_ids=np.concatenate([np.asarray(sequence, np.int64) for sequence in sequences]),
        position_ids=np.concatenate([np.arange(len(sequence)) for sequence in sequences]),
        segments=[Segment(start, end, 0, None, end) for start, end in zip(starts, ends, strict=True)],
        rows=[np.arange(start, end) for start, end in zip(starts, ends, strict=True)],
    )


def tree_size(sequences: Sequence[Sequence[int]]) -> int:
    """The number of tokens that `build_tree` would lay out, without building it."""
    size, previous = 0, np.empty(0, np.int64)
    for sequence in sorted(list(sequence) for sequence in sequences):
        array = np.asarray(sequence, dtype=np.int64)
        size += len(array) - common_prefix(previous, array)
        previous = array
    return size


@dataclass(slots=True)
class _Run:
    """Contribution of one sequence to the tree, in one piece; `cuts` are the depths at which segments of it end."""

    token_ids: Ints
    offset: int
    depth: int
    owner: _Run | None
    cuts: set[int]


def _segments(runs: Sequence[_Run], n_tokens: int) -> list[Segment]:
    """Cut the runs where others branch off; a run's descendants end where a run that branched off earlier starts."""
    ending_at: dict[tuple[int, int], int] = {}
    segments: list[Segment] = []
    for number, run in enumerate(runs):
        parent = ending_at[run.owner.offset, run.depth] if run.owner is not None else None
        depth = run.depth
        for cut in sorted(run.cuts):
            following = (later.offset for later in runs[number + 1 :] if later.depth < cut)
            segments.append(
                Segment(
                    start=run.offset + depth - run.depth,
                    end=run.offset + cut - run.depth,
                    depth=depth,
                    parent=parent,
                    descendants_end=next(following, n_tokens),
                )
            )
            parent = len(segments) - 1
            ending_at[run.offset, cut] = parent
            depth = cut
    return segments
