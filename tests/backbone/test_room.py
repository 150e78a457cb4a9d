from __future__ import annotations

import asyncio

import pytest

from astune.backbone.cluster.groups import with_share
from astune.backbone.cluster.room import Room
from astune.backbone.trinity.names import n_runners
from astune.config.schema import AstuneConfig


async def test_groups_of_all_sizes_share_the_places() -> None:
    room, running, most = Room(4), 0, 0

    async def group(n_episodes: int) -> None:
        nonlocal running, most
        async with room.taken(n_episodes):
            running += min(n_episodes, 4)
            most = max(most, running)
            await asyncio.sleep(0)
            running -= min(n_episodes, 4)

    await asyncio.wait_for(asyncio.gather(*(group(n) for n in (3, 1, 1, 2, 9, 1, 4))), timeout=60)
    assert (running, most) == (0, 4)


@pytest.mark.parametrize("n_models", [1, 3, 8])
@pytest.mark.parametrize("num_repeat", [1, 8, 32])
def test_runners_have_no_more_places_together_than_are_asked_for(n_models: int, num_repeat: int) -> None:
    keys = {"max_env_worker": 16, "num_repeat": num_repeat}
    models = {"explorer": {"rollout_model": {"engine_num": n_models}}}
    config = AstuneConfig.model_validate({"backbone": "trinity", "rollout": keys, "trinity": models})
    runners = n_runners(config)
    assert runners % n_models == 0
    assert runners * with_share(config, runners).rollout.max_env_worker <= 16
