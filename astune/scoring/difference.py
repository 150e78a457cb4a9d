"""Difference rewards: the contribution of each agent of a team, found by replaying the episode without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Move = TypeVar("Move")


def difference_rewards(
    outcome: Callable[[Sequence[tuple[str, Move]]], float],
    moves: Sequence[tuple[str, Move]],
    default: Move,
) -> dict[str, float]:
    """The reward of each agent: the outcome less that of the same moves with `default` in place of all of its own.

    Two carry boxes, a third only talks; an outcome is the number of boxes that were carried:

        moves     Ann box, Bob box, Eve talk, Ann box      ->  3
        no Ann    -        Bob box, Eve talk, -            ->  1    Ann earns 2
        no Bob    Ann box, -,       Eve talk, Ann box      ->  2    Bob earns 1
        no Eve    Ann box, Bob box, -,        Ann box      ->  3    Eve earns 0

    A shared reward would give all three 3. What an agent would have done differently had another been silent is not
    played: the others' moves stay as they were, so the environment must be one that can be replayed.

    Args:
        outcome: plays moves, each with the agent that makes it, in a fresh environment with the same seed.
        default: a move that changes nothing, such as waiting.

    Source: Wolpert and Tumer 2002, "Optimal Payoff Functions for Members of Collectives"; Foerster et al. 2018,
    arXiv 1705.08926, section 4, for the same idea with a learned critic.
    """
    whole = outcome(moves)
    return {
        agent: whole - outcome([(one, default if one == agent else move) for one, move in moves])
        for agent in dict.fromkeys(one for one, _ in moves)
    }
