"""YAML that was made to harm, or that YAML 1.1 reads as nobody means it."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from astune.config._yaml import parse_document, parse_value
from astune.config.plain_yaml import FastPlainLoader, PlainLoader, TooLargeError, require_small
from astune.schema import ConfigError

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
NESTED = "a: " + "[" * 100_000
BLOCKS = "".join(f"{' ' * depth}a:\n" for depth in range(500))
ITSELF = "a: &a [*a]"


@pytest.mark.parametrize("text", [BOMB, NESTED, BLOCKS, ITSELF], ids=["aliases", "brackets", "blocks", "itself"])
def test_what_grows_or_nests_without_end_is_refused_at_once(text: str):
    began = time.monotonic()
    with pytest.raises(TooLargeError):
        require_small(text)
    with pytest.raises(ConfigError, match=r"has more than|is nested deeper|contains itself"):
        parse_document(text, "conf.yaml")
    assert time.monotonic() - began < 5


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


def test_an_alias_still_stands_for_its_value():
    assert parse_document("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}", "conf.yaml").data["d"] == {"b": 1, "e": 2}
    assert parse_value("[1, 2]") == [1, 2]
