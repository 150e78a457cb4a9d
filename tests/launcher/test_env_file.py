"""`.env` in the working directory."""

from __future__ import annotations

import os

import pytest

from astune.cli.app import run
from astune.launcher.env_file import read_env_file
from astune.schema import ConfigError


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Whatever is read is forgotten afterwards."""
    for name in ("ENV_FILE_A", "ENV_FILE_B", "ENV_FILE_C"):
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)


def test_its_lines_become_the_environment(tmp_path):
    (tmp_path / ".env").write_text(
        "# a comment\nENV_FILE_A=source /opt/env/bin/activate\nexport ENV_FILE_B='x # y'\n\nENV_FILE_C = 3 # three\n"
    )
    read_env_file(tmp_path)
    assert os.environ["ENV_FILE_A"] == "source /opt/env/bin/activate"
    assert os.environ["ENV_FILE_B"] == "x # y"
    assert os.environ["ENV_FILE_C"] == "3"


def test_it_never_overrides_the_real_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ENV_FILE_A", "real")
    (tmp_path / ".env").write_text("ENV_FILE_A=file\nENV_FILE_B=file\n")
    read_env_file(tmp_path)
    assert (os.environ["ENV_FILE_A"], os.environ["ENV_FILE_B"]) == ("real", "file")


def test_none_is_fine(tmp_path):
    read_env_file(tmp_path)


def test_a_line_that_is_not_key_value_is_named_without_its_text(tmp_path):
    (tmp_path / ".env").write_text("ENV_FILE_A=1\nENV_FILE_B='never closed secret\n")
    with pytest.raises(ConfigError) as caught:
        read_env_file(tmp_path)
    assert ".env, line 2 is not KEY=VALUE" in caught.value.message
    assert "secret" not in str(caught.value)
    assert "ENV_FILE_A" not in os.environ


def test_a_file_that_is_no_text_is_an_error(tmp_path):
    (tmp_path / ".env").write_bytes(b"A=\xff\xfe\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_env_file(tmp_path)


def test_every_command_reads_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("ENV_FILE_A=1\n")
    with pytest.raises(SystemExit):
        run(["config", "explain", "seed"])
    assert os.environ["ENV_FILE_A"] == "1"
    (tmp_path / ".env").write_text("what is this\n")
    with pytest.raises(SystemExit) as ended:
        run(["config", "explain", "seed"])
    assert ended.value.code == 2
    assert ".env, line 1" in capsys.readouterr().err
