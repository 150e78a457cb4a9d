from __future__ import annotations

import pytest

from astune.config.key_map import engine_values, read_key_map
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError

CONFIG = AstuneConfig.model_validate({"rollout": {"num_repeat": 6}, "trainer": {"tasks_per_step": 5}})


def test_a_key_sets_all_that_it_is_mapped_to() -> None:
    assert engine_values(CONFIG, {"astune.trainer.tasks_per_step": ["data.size", "actor.size"]}) == {
        "data.size": 5,
        "actor.size": 5,
    }


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(astune.rollout.num_repeat * astune.trainer.tasks_per_step)", 30),
        ("(astune.rollout.num_repeat // 4 + 1)", 2),
        ("(max(astune.rollout.num_repeat, 8) / 4)", 2.0),
        ("(min(astune.rollout.num_repeat, astune.trainer.tasks_per_step) - 1)", 4),
    ],
)
def test_parentheses_hold_arithmetic(expression: str, value: float) -> None:
    assert engine_values(CONFIG, {expression: ["key"]}) == {"key": value}


@pytest.mark.parametrize(
    "expression", ["(__import__('os'))", "(open(astune.seed))", "(astune.seed ** 9)", "(seed)", "(1 / 0)", "(1 +)"]
)
def test_nothing_else_is_evaluated(expression: str) -> None:
    with pytest.raises(ConfigError, match="the key map has the expression"):
        engine_values(CONFIG, {expression: ["key"]})


def test_null_leaves_the_engines_own_default() -> None:
    keys = {"astune.trainer.loss.importance_cap": ["cap"], "(astune.trainer.loss.importance_cap * 2)": ["twice"]}
    without = AstuneConfig.model_validate({"trainer": {"loss": {"importance_cap": None}}})
    assert engine_values(CONFIG, keys) == {"cap": 2.0, "twice": 4.0}
    assert engine_values(without, keys) == {}


def test_a_key_that_is_none_of_ours_is_named() -> None:
    with pytest.raises(ConfigError, match=r"astune\.trainer\.steps"):
        engine_values(CONFIG, {"astune.trainer.steps": ["key"]})


def test_every_key_of_the_map_for_trinity_is_ours() -> None:
    values = engine_values(CONFIG, read_key_map("trinity"))
    assert values["buffer.batch_size"] == 5
    assert values["algorithm.optimizer.lr"] == CONFIG.trainer.optim.lr


def test_every_key_of_the_map_for_verl_is_ours() -> None:
    values = engine_values(CONFIG, read_key_map("verl"))
    assert values["data.train_batch_size"] == 5
    assert values["actor_rollout_ref.rollout.temperature"] == 1.0
