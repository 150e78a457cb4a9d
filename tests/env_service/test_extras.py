"""Environments whose packages are extras, where these are not installed."""

from __future__ import annotations

import re
import sys

import pytest
from service_stage import Service

from astune.env_service import open_environment
from astune.env_service.__main__ import main
from astune.env_service.built_in import environment_class
from astune.schema import EnvError, Task, install_extra


@pytest.mark.parametrize(
    ("package", "extra", "name"),
    [
        ("reasoning_gym", "reasoning-gym", "reasoning_gym:leg_counting"),
        ("gymnasium", "frozenlake", "gymnasium:Taxi-v4"),
        ("textworld", "textworld", "textworld:tw-simple"),
        ("textarena", "textarena", "textarena:SecretMafia-v0"),
        ("pettingzoo.classic.tictactoe_v3", "pettingzoo", "pettingzoo:classic.tictactoe_v3"),
    ],
)
def test_without_the_package_the_extra_is_named(
    package: str, extra: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    hosted = environment_class(name, asked_by="--env")
    told = re.escape(install_extra(extra))
    with pytest.raises(EnvError, match=told):
        hosted.prepare()
    with pytest.raises(EnvError, match=told):
        hosted.get_query_list("train", {})
    with pytest.raises(EnvError, match=told):
        hosted(Task(task_id="train-3", main_query="train-3", env_type=name), 0)


def test_a_class_that_is_written_otherwise_is_told_how() -> None:
    with pytest.raises(EnvError, match=r"write it as 'file\.py->Class', in quotes"):
        environment_class("hidden.py>HiddenNumber", asked_by="--env")


@pytest.mark.parametrize("port", ["80800", "-1", "http"])
def test_what_is_no_port_is_one_line(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--env", "calculator", "--port", port])
    assert "a number from 0 to 65535" in capsys.readouterr().err


async def test_a_server_that_hosts_another_environment_says_what_to_correct() -> None:
    service = Service("calculator")
    try:
        task = Task("1", "1", env_type="calculater", metadata={"env_url": service.url})
        handle = open_environment("calculater", task, seed=0)
        assert handle is not None
        with pytest.raises(EnvError, match="this server hosts calculator, not 'calculater'") as refused:
            await handle.create()
    finally:
        service.end()
    assert refused.value.hint.startswith("correct env_type")
