"""Token accounting of a step's episodes (law 3)."""

from __future__ import annotations

from collections.abc import Sequence

from astune.engine.base import EngineStats
from astune.rollout.episode import INTERRUPTED
from astune.schema import EpisodeGroup, TokenBalance, trained_and_masked


def token_balance(groups: Sequence[EpisodeGroup], counted: EngineStats) -> TokenBalance:
    """Every token that the engine sampled, in exactly one account.

    Args:
        groups: all groups of the time in which the engine counted, with their failed attempts.
        counted: the difference of two readings of its counters, made while no call was running.
    """
    balance = TokenBalance(sampled=counted.sampled_tokens)
    for group in groups:
        for episode in group.episodes:
            if group.dropped is None:
                trained, masked = trained_and_masked(episode.timelines)
                balance.trained += trained
                balance.masked += masked
            else:
                balance.dropped[group.dropped.split(":", 1)[0]] += episode.forest.sampled_tokens()
        for episode in group.failed_attempts:
            account = INTERRUPTED if episode.error == INTERRUPTED else "attempt failed"
            balance.dropped[account] += episode.forest.sampled_tokens()
    balance.dropped["cancelled call"] += counted.cancelled_tokens
    balance.dropped += type(balance.dropped)()  # omits accounts of zero tokens
    return balance
