from __future__ import annotations

import asyncio

from astune.backbone.cluster.room import Room


async def test_groups_of_all_sizes_share_the_places() -> None:
    room, running, most = Room(4), 0, 0

    async def group(n_episodes: int) -> None:
        nonlocal running, most
        async with room.taken(n_episodes):
            running += min(n_episodes, 4)
            most = max(most, running)
            await asyncio.sleep(0)
            running -= min(n_episodes, 4)

    await asyncio.wait_for(asyncio.gather(*(group(n) for n in (3, 1, 1, 2, 9, 1, 4))), timeout=5)
    assert (running, most) == (0, 4)
