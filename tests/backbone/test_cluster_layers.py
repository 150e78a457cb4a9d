from __future__ import annotations

from typing import Any

import pytest

from astune.backbone.cluster.layers import as_typed, layers_of, leaves, precision, require_kind, require_known
from astune.config.schema import AstuneConfig, ClusterEngine
from astune.schema import ConfigError


def config(engine: str, **keys: Any) -> AstuneConfig:
    return AstuneConfig.model_validate({engine: keys})


@pytest.mark.parametrize("engine", ["verl", "trinity"])
def test_the_users_own_keys_come_last(engine: ClusterEngine) -> None:
    own = config(engine, trainer={"save_freq": 3, "nested": {"deep": [1]}})
    layers = layers_of(engine, own, {"run": 1}, on_cpu=True)
    assert [source for source, _ in layers] == [
        f"default_config/{engine}_default.yaml",
        f"default_config/{engine}_cpu.yaml",
        f"config_auto_convertion_{engine}.json",
        "astune's own",
        f"astune.{engine}",
    ]
    assert layers[-2][1] == {"run": 1}
    assert layers[-1][1] == {"trainer.save_freq": 3, "trainer.nested.deep": [1]}


@pytest.mark.parametrize(
    ("engine", "keys"),
    [
        ("verl", {"actor_rollout_ref": {"actor": {"loss_agg_mode": "token-mean"}}}),
        ("verl", {"algorithm": {"rollout_correction": {"rollout_is": None}}}),
        ("trinity", {"algorithm": {"policy_loss_fn": "ppo"}}),
        ("trinity", {"buffer": {"train_batch_size": 7}}),
        ("trinity", {"trainer": {"trainer_config": {"actor_rollout_ref": {"actor": {"ppo_epochs": 4}}}}}),
        ("verl", {"trainer": {"critic_warmup": 2}}),
        ("verl", {"trainer": {"test_freq": -1}}),
        ("trinity", {"explorer": {"runner_per_model": 16}}),
        ("verl", {"actor_rollout_ref": {"rollout": {"max_model_len": 2048}}}),
        ("trinity", {"explorer": {"rollout_model": {"max_model_len": 2048}}}),
        ("trinity", {"model": {"min_response_tokens": 4}}),
        ("trinity", {"model": {"lora_configs": [{"lora_rank": 8}]}}),
        ("verl", {"actor_rollout_ref": {"model": {"lora_alpha": 32}}}),
        ("verl", {"algorithm": {"filter_groups": {"enable": True}}}),
        ("verl", {"distillation": {"enabled": True}}),
        ("verl", {"reward": {"reward_model": {"enable": True}}}),
        ("verl", {"actor_rollout_ref": {"actor": {"checkpoint": {"async_save": True}}}}),
        ("verl", {"actor_rollout_ref": {"model": {"mtp": {"enable": True}}}}),
        ("verl", {"trainer": {"max_actor_ckpt_to_keep": 1}}),
        ("trinity", {"trainer": {"max_checkpoints_to_keep": 1}}),
    ],
)
def test_what_the_loss_rests_on_is_not_the_users_to_say(engine: ClusterEngine, keys: dict[str, Any]) -> None:
    [[key, _]] = leaves(keys)
    with pytest.raises(ConfigError, match=f"astune.{engine}: {key} is set by astune"):
        layers_of(engine, config(engine, **keys), {}, on_cpu=False)


def test_who_says_what_is_astunes_to_say_is_told_the_key_to_say_it_with() -> None:
    with pytest.raises(ConfigError) as told:
        layers_of("verl", config("verl", data={"train_batch_size": 2}), {}, on_cpu=False)
    assert told.value.hint == "it follows from astune.trainer.tasks_per_step"


@pytest.mark.parametrize(("engine", "value"), [("verl", None), ("trinity", None), ("trinity", 8)])
def test_a_section_that_is_left_empty_is_refused(engine: ClusterEngine, value: int | None) -> None:
    with pytest.raises(ConfigError, match=rf"trainer is a section of {engine}'s; found {value}"):
        layers_of(engine, config(engine, trainer=value), {}, on_cpu=False)
    layers_of(engine, config(engine, trainer={}), {}, on_cpu=False)


def test_a_word_where_the_engine_has_a_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"verl has a number at trainer\.nnodes, as 1; found 'two'"):
        require_kind("trainer.nnodes", "two", 1, source="astune.verl", engine="verl")
    for value in (2, 0.5, None, "${oc.env:NODES}"):
        require_kind("trainer.nnodes", value, 1, source="astune.verl", engine="verl")


def test_a_key_that_the_engine_does_not_have_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"verl has no key trainer\.nnode; did you mean trainer\.nnodes\?"):
        require_known("trainer.nnode", ["trainer.nnodes"], source="astune.verl", engine="verl")


def test_whole_numbers_stay_whole_where_an_engine_wants_them() -> None:
    assert as_typed(7800.0, 1800) == 7800
    assert isinstance(as_typed(7800.0, 1800), int)
    assert as_typed(0.5, 1) == 0.5
    assert isinstance(as_typed(2.0, 1.0), float)


def test_the_precision_that_is_asked_for_is_told_to_servers_and_trainers() -> None:
    asked = AstuneConfig.model_validate({"model": {"dtype": "bfloat16"}})
    assert precision(asked, servers="models.dtype", trainers=["actor", "ref"]) == {
        "models.dtype": "bfloat16",
        **{f"{role}.mixed_precision.param_dtype": "bf16" for role in ("actor", "ref")},
        **{
            f"{role}.mixed_precision.{what}_dtype": "fp32" for role in ("actor", "ref") for what in ("reduce", "buffer")
        },
    }
    assert precision(AstuneConfig(), servers="models.dtype", trainers=["actor"]) == {}
