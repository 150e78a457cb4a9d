"""Places for episodes, shared by groups of any size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """A group waits until there are places for all its episodes; one larger than the room takes all of it."""

    def __init__(self, places: int) -> None:
        self._places = self._free = places
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, n_episodes: int) -> AsyncIterator[None]:
        n_episodes = min(n_episodes, self._places)
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= n_episodes)
            self._free -= n_episodes
        try:
            yield
        finally:
            async with self._changed:
                self._free += n_episodes
                self._changed.notify_all()
