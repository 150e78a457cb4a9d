"""From flags and configuration to companions: each mistake is one clear error with its fix."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from astune.config import AstuneConfig, load_config
from astune.launcher import companion as companion_module
from astune.launcher.companion import (
    CompanionFlags,
    appworld,
    companions_of,
    give_ray_head_a_token,
    in_shell,
    running_ray_head,
)
from astune.launcher.companions import Companions
from astune.schema import ConfigError

CONFIG = """
astune:
  companions:
    tools:
      command: python tools_server.py
      health_url: http://127.0.0.1:9000/healthz
      success_message: tools are ready
      timeout_s: 5
    nameless: {timeout_s: 7}
"""


@pytest.fixture
def config(tmp_path: Path) -> AstuneConfig:
    (tmp_path / "c.yaml").write_text(CONFIG)
    return load_config(tmp_path / "c.yaml")


def test_a_command_makes_a_companion(config):
    (found,) = companions_of(CompanionFlags(("env=cd there && python env.py --mode=fast",)), config)
    assert found.name == "env"
    assert found.command[-1] == "cd there && python env.py --mode=fast"
    assert found.health_url is None
    assert "Uvicorn running on" in found.success_messages


def test_the_configuration_says_what_a_companion_is(config):
    (found,) = companions_of(CompanionFlags(("tools",)), config)
    assert found.command == in_shell("python tools_server.py")
    assert found.health_url == "http://127.0.0.1:9000/healthz"
    assert found.success_messages[0] == "tools are ready"
    assert found.timeout_s == 5
    (other,) = companions_of(CompanionFlags(("tools=other",)), config)
    assert (other.command, other.timeout_s) == (in_shell("other"), 5)


MISTAKES = {
    "no name": ("=python x.py", "does not have the form NAME=COMMAND"),
    "no command": ("env=", "does not have the form NAME=COMMAND"),
    "a name that is a path": ("../env=python x.py", "does not have the form NAME=COMMAND"),
    "an unknown name": ("tool", "did you mean --with tools?"),
    "an unknown name, nothing near": ("something", "the configuration has tools"),
    "one without a command": ("nameless", "astune.companions.nameless has no command"),
    "a flag's name": ("ray", "did you mean --with-ray?"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_malformed_flag_is_one_clear_error(mistake, config):
    text, says = MISTAKES[mistake]
    with pytest.raises(ConfigError) as caught:
        companions_of(CompanionFlags((text,)), config)
    assert says in str(caught.value)
    assert caught.value.hint


def test_a_name_twice_is_an_error(config):
    with pytest.raises(ConfigError, match="two companions are called a"):
        companions_of(CompanionFlags(("a=x", "a=y")), config)


def test_an_address_that_is_none_is_an_error(tmp_path):
    config = load_config(None, ["companions.env.health_url=127.0.0.1:80"])
    with pytest.raises(ConfigError, match="which is not an address"):
        companions_of(CompanionFlags(("env=x",)), config)


def test_the_viewer_shows_the_folder_of_the_run_and_a_run_goes_on_without_it(config, tmp_path):
    (found,) = companions_of(CompanionFlags(logview=True), config, tmp_path / "my runs")
    assert (found.name, found.needed, found.page) == ("logview", False, "http://127.0.0.1:8181/")
    assert found.command[-5:] == ("view", str(tmp_path / "my runs"), "--no-open", "--port", "8181")
    assert found.health_url == f"http://127.0.0.1:8181/healthz?folder={quote(str(tmp_path / 'my runs'))}"
    (default,) = companions_of(CompanionFlags(logview=True), config)
    assert str(Path("launcher_record").resolve()) in default.command


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("companions: {env: {helth_url: x}}", "did you mean `astune.companions.NAME.health_url`?"),
        ("companions: {env: {timeout_s: soon}}", "`astune.companions.env.timeout_s` must be a number, above 0"),
        ("companions: {env: {timeout_s: true}}", "`astune.companions.env.timeout_s` must be a number"),
        ("companions: {env: 3}", "`astune.companions.env` must be a section"),
        ("companions: [env]", "`astune.companions` must be a mapping"),
    ],
)
def test_a_mistake_in_the_section_is_named_with_its_line(text, says, tmp_path):
    (tmp_path / "c.yaml").write_text(f"astune:\n  {text}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "c.yaml")
    assert says in str(caught.value)
    assert "c.yaml, line 2" in str(caught.value)


def test_the_section_is_explained():
    from astune.config import explain

    assert "health_url" in explain("companions.NAME")
    assert "Start-up timeout in seconds" in explain("companions.tools.timeout_s")


@pytest.fixture
def appworld_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """AppWorld's folder and an activation that puts its own Python first; stands in for the real environment."""
    script = tmp_path / "appworld_server.py"
    script.write_text("")
    monkeypatch.setattr(companion_module, "APPWORLD_SERVER", script)
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$APPWORLD_PATH: own python $*"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "activate").write_text(f"export PATH={tmp_path}/bin:$PATH\n")
    return {"APPWORLD_PATH": str(tmp_path), "APPWORLD_ACTIVATION": f"source {tmp_path}/activate"}


def test_appworld_runs_in_the_environment_that_its_line_activates(appworld_world, config, tmp_path):
    found = appworld(config, appworld_world)
    assert found.health_url == "http://127.0.0.1:8080/healthz"
    done = subprocess.run(found.command, env=os.environ | appworld_world, capture_output=True, text=True, check=True)
    script = f"{tmp_path}/appworld_server.py"
    assert done.stdout == f"{tmp_path}: own python {script} --portal 127.0.0.1 --port 8080\n"


@pytest.mark.parametrize("name", ["APPWORLD_PATH", "APPWORLD_ACTIVATION"])
def test_appworld_says_what_it_needs(name, appworld_world, config):
    del appworld_world[name]
    with pytest.raises(ConfigError, match=f"{name} is not set") as caught:
        appworld(config, appworld_world)
    assert ".env" in caught.value.hint


def test_appworlds_folder_must_be_there(appworld_world, config):
    with pytest.raises(ConfigError, match="which is not a folder"):
        appworld(config, appworld_world | {"APPWORLD_PATH": "/no/such/folder"})


def test_ray_needs_its_command(config, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(companion_module.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "ray").write_text("a file of the user's")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ConfigError, match="there is no command `ray`") as caught:
        companions_of(CompanionFlags(ray=True), config)
    assert "pip install ray" in caught.value.hint


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray; no extra installs it yet")
def test_a_real_ray_head_is_started_found_again_and_ended(config, tmp_path, monkeypatch, request):
    folder = tempfile.TemporaryDirectory(prefix="ray-")  # Ray's sockets need a short path
    request.addfinalizer(folder.cleanup)
    monkeypatch.setenv("RAY_TMPDIR", folder.name)
    with Companions(companions_of(CompanionFlags(ray=True), config), tmp_path / "experiment") as companions:
        companions.start(print, lambda _line, _passed_s: None)
        (again,) = companions_of(CompanionFlags(ray=True), config)
        assert again.health_url is not None
        raylets = [each for each in psutil.process_iter() if each.name() == "raylet"]
        assert raylets
    assert not any(raylet.is_running() for raylet in raylets)


def test_a_ray_head_that_is_to_be_started_gets_a_token_unless_the_user_said_how_it_is_guarded(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    give_ray_head_a_token()
    assert "RAY_AUTH_TOKEN" not in os.environ
    monkeypatch.delenv("RAY_AUTH_MODE")
    give_ray_head_a_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_a_ray_head_that_answers_is_found(tmp_path, port):
    assert running_ray_head(tmp_path) is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{port}")
    assert running_ray_head(tmp_path) is None
    with socket.create_server(("127.0.0.1", port)):
        assert running_ray_head(tmp_path) == f"tcp://127.0.0.1:{port}"
