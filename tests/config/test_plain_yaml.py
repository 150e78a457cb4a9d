"""YAML that was made to harm, or that YAML 1.1 reads as nobody means it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from astune.config import load_config
from astune.config.plain_yaml import FastPlainLoader, PlainLoader, TooLargeError, require_small
from astune.schema import ConfigError

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
NESTED = "a: " + "[" * 100_000
BLOCKS = "".join(f"{' ' * depth}a:\n" for depth in range(500))
ITSELF = "a: &a [*a]"


@pytest.mark.parametrize("text", [BOMB, NESTED, BLOCKS, ITSELF], ids=["aliases", "brackets", "blocks", "itself"])
def test_what_grows_or_nests_without_end_is_refused_at_once(text: str, tmp_path: Path):
    file = tmp_path / "conf.yaml"
    file.write_text(text)
    began = time.process_time()
    with pytest.raises(TooLargeError):
        require_small(text)
    with pytest.raises(ConfigError, match=r"has more than|is nested deeper|contains itself"):
        load_config(file)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("loader", [PlainLoader, FastPlainLoader])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1:30", "1:30"),
        ("12:30:45.5", "12:30:45.5"),
        ("2026-01-31", "2026-01-31"),
        ("2026-99-99", "2026-99-99"),
        ("0x1F", 31),
        ("-7", -7),
        ("010", "010"),
        ("-0_7", "-0_7"),
        ("02134", "02134"),
        ("0", 0),
        ("00.5", 0.5),
        ("1_000", 1000),
        (".5", 0.5),
        (".inf", float("inf")),
        ("true", True),
        ("", None),
    ],
)
def test_values_are_what_they_look_like(loader: Any, text: str, value: object):
    assert yaml.load(text, Loader=loader) == value


@pytest.mark.parametrize("loader", [PlainLoader, FastPlainLoader])
def test_a_number_of_thousands_of_digits_is_an_error_of_yaml(loader: Any):
    with pytest.raises(yaml.YAMLError, match="too many digits"):
        yaml.load("9" * 5000, Loader=loader)


def test_an_alias_still_stands_for_its_value(tmp_path: Path):
    file = tmp_path / "conf.yaml"
    file.write_text("shared: &lr {lr: 1e-6}\nastune: {trainer: {optim: {<<: *lr, warmup_steps: 2}}}")
    with pytest.raises(ConfigError, match="shared"):
        load_config(file)
    file.write_text(
        "astune: {trainer: {optim: &lr {lr: 1e-6}}, models: {a: {lora: {rank: 8}, optim: {<<: *lr, warmup_steps: 2}}}}"
    )
    config = load_config(file, ["trackers=[tensorboard, wandb]"])
    assert (config.trainer.optim.lr, len(config.trackers)) == (1e-6, 2)
    assert config.models["a"].optim is not None
    assert (config.models["a"].optim.lr, config.models["a"].optim.warmup_steps) == (1e-6, 2)


def test_a_character_that_json_escapes_as_a_pair_is_one():
    assert load_config(None, [r'rollout.params={"\ud83d\ude42": ["\ud83d\ude42!"]}']).rollout.params == {"🙂": ["🙂!"]}
