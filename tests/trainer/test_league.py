"""The league: who plays against which earlier version, that the version is that one, and what is reported of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trainer_helpers import episode, group, node
from two_policies import MODELS, batch, loaded, several

from astune.config.league import LeagueConfig, pool_of, slot_of
from astune.config.schema import AstuneConfig
from astune.engine import InProcessEngine
from astune.schema import SamplingParams, Task
from astune.trainer.league import league_metrics

BOTH: dict[str, Any] = {"wolf": {"lora": {"rank": 2}}, "farmer": {"lora": {"rank": 2}}}
ONE: dict[str, Any] = {"player": {"targets": ["first", "second"], "lora": {"rank": 2}}}


def in_league(models: dict[str, Any], **league: Any) -> AstuneConfig:
    return AstuneConfig.model_validate({"models": models, "trainer": {"league": {"share": 0.5, **league}}})


@pytest.mark.parametrize(
    ("step", "pool"), [(1, [0]), (5, [0]), (6, [5, 0]), (11, [10, 5, 0]), (16, [15, 10, 5]), (23, [20, 15, 10])]
)
def test_the_pool_is_the_newest_versions_each_in_a_place_of_its_own(step: int, pool: list[int]) -> None:
    league = LeagueConfig(share=1, every=5, size=3)
    assert pool_of(league, step) == pool
    assert len({slot_of(league, at) for at in pool}) == len(pool)


def test_so_many_groups_as_asked_for_meet_an_earlier_version_of_either_side() -> None:
    config = in_league(BOTH, every=1, size=3)
    drawn = [config.past_player(9, f"game {number}") for number in range(1000)]
    past = [one for one in drawn if one is not None]
    assert 450 < len(past) < 550
    assert {one.policy for one in past} == {"wolf", "farmer"}
    assert {(one.kept_at, one.generation) for one in past} == {(8, 1), (7, 2), (6, 3)}
    assert drawn == [config.past_player(9, f"game {number}") for number in range(1000)], "a group meets one opponent"
    assert drawn != [config.past_player(10, f"game {number}") for number in range(1000)]
    assert in_league(BOTH, share=0).past_player(9, "game") is None


def test_one_policy_plays_one_of_its_targets_as_it_was() -> None:
    past = [in_league(ONE, share=1).past_player(1, f"game {number}") for number in range(20)]
    assert {one.target for one in past if one is not None} == {"first", "second"}
    assert all(one is not None and one.plays("player", one.target or "") for one in past)
    with pytest.raises(ValueError, match="nobody could play against an earlier version"):
        in_league({"player": {"lora": {"rank": 2}}})


def of(config: AstuneConfig, **trainer: Any) -> AstuneConfig:
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=trainer)})


async def said(engine: InProcessEngine, policy: str) -> tuple[list[int], list[float]]:
    params = SamplingParams(max_tokens=6, temperature=0, policy=policy)
    completion = await engine.generate([5, 6, 7, 8], params, session=policy)
    return completion.token_ids, completion.logprobs


def engine_of(folder: Path, config: AstuneConfig) -> InProcessEngine:
    return InProcessEngine.load(
        folder, model=config.model, engine=config.engine, max_model_len=256, adapters=dict.fromkeys(config.models)
    )


@pytest.mark.slow
async def test_an_earlier_version_answers_as_it_did_also_after_a_resume(small_folder: Path, tmp_path: Path) -> None:
    config = of(several(MODELS, deterministic=True), league=LeagueConfig(share=1, every=1, size=2))
    policies, engine = loaded(small_folder, config), engine_of(small_folder, config)
    history: list[Any] = []
    for step in (1, 2, 3):
        await policies.enter_league(step, engine)
        history.append(await said(engine, "wolf"))
        policies.step(batch(step))
        await policies.publish(engine)
    await policies.enter_league(4, engine)
    now = await said(engine, "wolf")
    assert len({str(one) for one in [*history, now]}) == 4, "every step changed what it says"
    assert await said(engine, "wolf@1") == now, "kept after step 3"
    assert await said(engine, "wolf@0") == history[2], "kept after step 2"
    policies.save_state(tmp_path)
    await engine.aclose()

    resumed, engine = loaded(small_folder, config), engine_of(small_folder, config)
    resumed.load_state(tmp_path)
    await resumed.publish(engine)
    await resumed.enter_league(4, engine)
    assert [await said(engine, name) for name in ("wolf", "wolf@1", "wolf@0")] == [now, now, history[2]]
    await engine.aclose()


@pytest.mark.slow
async def test_a_league_that_begins_or_changes_on_a_resume_has_every_opponent_that_it_draws(
    small_folder: Path, tmp_path: Path
) -> None:
    config = of(several(MODELS, deterministic=True), league=LeagueConfig(share=1, every=5, size=3))
    policies, engine = loaded(small_folder, config), engine_of(small_folder, config)
    await policies.publish(engine)
    await policies.enter_league(13, engine)
    drawn = {past.adapter for n in range(40) if (past := config.past_player(13, str(n))) is not None}
    assert {name.partition("@")[2] for name in drawn} == {"0", "1", "2"}
    for name in drawn:
        (_, ours), (_, theirs) = await said(engine, name), await said(engine, name.partition("@")[0])
        assert ours == pytest.approx(theirs, abs=1e-5)
    policies.save_state(tmp_path)
    await engine.aclose()

    config = of(config, league=LeagueConfig(share=1, every=2, size=3))
    resumed, engine = loaded(small_folder, config), engine_of(small_folder, config)
    resumed.load_state(tmp_path)
    await resumed.publish(engine)
    await resumed.enter_league(14, engine)
    assert all([await said(engine, f"wolf@{slot}") for slot in range(3)])
    await engine.aclose()


def test_results_are_reported_by_pairing() -> None:
    config = in_league(BOTH, share=0.5, every=1, size=2)
    tasks = [f"game {number}" for number in range(40)]
    groups, expected = [], {}
    for name in tasks:
        past = config.past_player(3, name)
        nodes = [
            node(0, None, [1]),
            node(1, 0, [5], sampled=1, agent="wolf"),
            node(2, 0, [6], sampled=1, agent="farmer"),
        ]
        for one in nodes[1:]:
            one.trainable = past is None or past.policy != one.agent
        own = episode(nodes, per_target={"wolf": 1.0, "farmer": 0.0})
        groups.append(group([replace(own, step=3, task=Task(task_id=name, main_query="?"))]))
        for who in ("wolf", "farmer"):
            if past is None or past.policy != who:
                key = f"league/{who}_vs_" + ("others_0" if past is None else f"{past.policy}_{past.generation}")
                expected[f"{key}/reward_mean"] = 1.0 if who == "wolf" else 0.0
                expected[f"{key}/episodes"] = expected.get(f"{key}/episodes", 0.0) + 1
    assert league_metrics(config, groups) == expected
    assert len(expected) == 2 * (2 + 4), "both sides without a past player, and against two generations of the other"
    assert league_metrics(of(config, league=LeagueConfig()), groups) == {}
