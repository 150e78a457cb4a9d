"""`astune config explain`, and the catalogue of keys behind it."""

from __future__ import annotations

import pytest

from astune.config import explain
from astune.config.keys import all_keys
from astune.schema import ConfigError


def test_a_key_is_explained_with_type_default_range_and_reason():
    text = explain("rollout.num_repeat")
    for part in ("astune.rollout.num_repeat", "a whole number", "8", "at least 1", "baseline"):
        assert part in text


def test_a_section_lists_its_keys_and_the_empty_key_the_sections():
    assert "warmup_steps" in explain("trainer.optim")
    assert "rollout:" in explain("")
    assert explain("astune") == explain("")


@pytest.mark.parametrize(
    "spelling", ["astune.rollout.workflow", "rollout.workflow", "rollout.agentscope_learn_protocol"]
)
def test_root_key_and_aliases_may_be_written_or_not(spelling):
    assert explain(spelling).startswith("astune.rollout.workflow")
    assert "agentscope_learn_protocol" in explain(spelling)


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ConfigError, match=r"astune\.trainer\.optim\.lr"):
        explain("optim.lr")


def test_every_key_can_be_explained_and_carries_its_reason():
    keys = all_keys()
    assert [path for path in keys if not explain(path).startswith(f"astune.{path}")] == []
    assert [path for path, key in keys.items() if not key.reason] == []


def test_knobs_are_few():
    assert sum(key.section is None for key in all_keys().values()) <= 191  # decisions.md says why beyond 100
