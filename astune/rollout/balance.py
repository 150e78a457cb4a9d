"""The account of a step's sampled tokens, from what became of its episodes (law 3)."""

from __future__ import annotations

from collections.abc import Sequence

from astune.engine.base import EngineStats
from astune.rollout.episode import INTERRUPTED
from astune.schema import Episode, EpisodeGroup, TokenBalance


def token_balance(groups: Sequence[EpisodeGroup], before: EngineStats, after: EngineStats) -> TokenBalance:
    """Every token that the engine sampled between two readings of its counters, in exactly one account.

    Args:
        groups: all groups of the time in between, with their failed attempts.
        before, after: the engine's counters, read while no call was running.
    """
    balance = TokenBalance(sampled=after.sampled_tokens - before.sampled_tokens)
    for group in groups:
        for episode in group.episodes:
            if group.dropped is None:
                _book_used(episode, balance)
            else:
                balance.dropped[group.dropped.split(":", 1)[0]] += episode.forest.sampled_tokens()
        for episode in group.failed_attempts:
            account = INTERRUPTED if episode.error == INTERRUPTED else "attempt failed"
            balance.dropped[account] += episode.forest.sampled_tokens()
    balance.dropped["cancelled call"] += after.cancelled_tokens - before.cancelled_tokens
    balance.dropped += type(balance.dropped)()  # leaves out accounts of zero tokens
    return balance


def _book_used(episode: Episode, balance: TokenBalance) -> None:
    """Book each sampled message of a trained episode once: trained where any timeline trains it, else masked."""
    reasons: dict[int, str | None] = {}
    for timeline in episode.timelines:
        for span in timeline.spans:
            if span.sampled and (span.mask_reason is None or span.node_id not in reasons):
                reasons[span.node_id] = span.mask_reason
    for node_id, reason in reasons.items():
        tokens = episode.forest.nodes[node_id].n_sampled
        if reason is None:
            balance.trained += tokens
        else:
            balance.masked[reason] += tokens
