"""Environments whose packages are extras, where these are not installed."""

from __future__ import annotations

import re
import sys

import pytest

from astune.env_service.built_in import environment_class
from astune.schema import EnvError, Task


@pytest.mark.parametrize(
    ("package", "extra", "name"),
    [
        ("reasoning_gym", "reasoning-gym", "reasoning_gym:leg_counting"),
        ("textworld", "textworld", "textworld:tw-simple"),
    ],
)
def test_without_the_package_the_extra_is_named(
    package: str, extra: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    hosted = environment_class(name, asked_by="--env")
    told = re.escape(f"pip install 'astune[{extra}]'")
    with pytest.raises(EnvError, match=told):
        hosted.get_query_list("train", {})
    with pytest.raises(EnvError, match=told):
        hosted(Task(task_id="train-3", main_query="train-3", env_type=name), 0)
