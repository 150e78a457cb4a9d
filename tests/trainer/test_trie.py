from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from astune.trainer import attention_plan
from astune.trainer.trie import build_tree, tree_size

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)


def test_the_worked_example_holds() -> None:
    tree = build_tree([[1, 2, 3, 4], [1, 2, 5, 6]])
    assert tree.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert tree.position_ids.tolist() == [0, 1, 2, 3, 2, 3]
    assert [(s.start, s.end, s.parent, s.descendants_end) for s in tree.segments] == [
        (0, 2, None, 6),
        (2, 4, 0, 4),
        (4, 6, 0, 6),
    ]


@given(sequences)
def test_a_tree_holds_each_distinct_beginning_once_and_gives_every_sequence_back(
    given_sequences: list[list[int]],
) -> None:
    tree = build_tree(given_sequences)
    prefixes = {tuple(sequence[: n + 1]) for sequence in given_sequences for n in range(len(sequence))}
    assert len(tree) == len(prefixes) == tree_size(given_sequences)
    for sequence, rows in zip(given_sequences, tree.rows, strict=True):
        assert tree.token_ids[rows].tolist() == sequence
        assert tree.position_ids[rows].tolist() == list(range(len(sequence)))


@given(sequences, st.integers(1, 5), st.integers(1, 5), st.integers(1, 60))
def test_a_plan_lets_each_token_see_exactly_its_own_path(
    given_sequences: list[list[int]], shortest_shared: int, longest_piece: int, scores: int
) -> None:
    tree = build_tree(given_sequences)
    limits = attention_plan.Limits(shortest_shared, longest_piece, scores, padding_waste=0.3)
    plan = attention_plan.plan_attention(tree, torch.device("cpu"), limits)
    sees: dict[int, list[int]] = {}
    for batch in plan.batches:
        owned = set(batch.own.tolist())
        n_branches, longest = batch.row_nL.shape
        for flat in owned:
            branch, place = divmod(flat, longest)
            row = int(batch.row_nL[branch, place])
            assert row not in sees
            sees[row] = batch.ancestor_A.tolist() + batch.row_nL[branch, : place + 1].tolist()
        assert owned.isdisjoint(batch.foreign.tolist())
        assert len(owned) + len(batch.foreign) == n_branches * longest
    assert len(sees) == len(tree)
    for rows in tree.rows:
        for place, row in enumerate(rows):
            assert np.array_equal(sees[int(row)], rows[: place + 1])
