"""Token accounting: every sampled token is counted in exactly one account."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenBalance:
    """Token accounting of one step: the tokens that the engine sampled, by what became of them.

    `sampled` comes from the engine's counter and the accounts from the episodes, so `difference` is a real check: it is
    0 when no token was lost or counted twice (law 3).
    """

    sampled: int = 0
    trained: int = 0
    masked: Counter[str] = field(default_factory=Counter[str])
    dropped: Counter[str] = field(default_factory=Counter[str])

    @property
    def difference(self) -> int:
        return self.sampled - self.trained - self.masked.total() - self.dropped.total()

    def __add__(self, other: TokenBalance) -> TokenBalance:
        return TokenBalance(
            self.sampled + other.sampled,
            self.trained + other.trained,
            self.masked + other.masked,
            self.dropped + other.dropped,
        )
