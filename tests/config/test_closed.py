"""Law 10: configuration is closed. Whatever is misspelt anywhere is an error that names the right key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from astune.config import load_config
from astune.config.keys import OF_OTHER_TOOLS, all_keys
from astune.schema import ConfigError

COMING_FROM = (Path(__file__).parents[2] / "docs/en/coming_from.md").read_text()
LONG_NAMES = sorted(path for path, key in all_keys().items() if len(key.name) >= 6)
SECTIONS = sorted({path.rpartition(".")[0] for path in all_keys()} - {""})


@given(path=st.sampled_from(LONG_NAMES), position=st.integers(1, 5), letter=st.sampled_from("xqz"))
def test_a_key_with_one_wrong_letter_is_refused_and_the_right_one_named(path, position, letter):
    section, _, name = path.rpartition(".")
    wrong = f"{name[:position]}{letter}{name[position + 1 :]}"
    assume(wrong != name)
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f"{section}.{wrong}=1" if section else f"{wrong}=1"])
    assert f"unknown key `astune.{section}{'.' if section else ''}{wrong}`" in str(caught.value)
    assert f"`astune.{path}`" in str(caught.value).partition("did you mean")[2]


@given(path=st.sampled_from(LONG_NAMES), section=st.sampled_from(SECTIONS))
def test_a_key_in_the_wrong_section_is_refused_and_its_place_named(path, section):
    name = path.rpartition(".")[2]
    places = [known for known in all_keys() if known.rpartition(".")[2] == name]
    if f"{section}.{name}" in places or all_keys()[section].is_open:
        return
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f"{section}.{name}=1"])
    assert any(f"`astune.{place}`" in str(caught.value) for place in places)


@pytest.mark.parametrize("name", OF_OTHER_TOOLS)
def test_a_setting_of_another_tool_is_refused_and_its_name_here_comes_first(name):
    assert name in COMING_FROM or name in ("batch_size", "epochs", "max_new_tokens", "max_tokens")
    with pytest.raises(ConfigError) as caught:
        load_config(None, [f"trainer.{name}=1"])
    assert str(caught.value).partition("did you mean ")[2].startswith(f"`astune.{OF_OTHER_TOOLS[name][0]}`")


def test_the_same_name_below_the_section_is_named_first():
    with pytest.raises(ConfigError, match=r"did you mean `astune\.trainer\.optim\.lr` or `astune\.models"):
        load_config(None, ["trainer.lr=1"])
