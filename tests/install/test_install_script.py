"""scripts/install.sh where something is missing: it says what, and how to get it. Nothing is installed here."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from astune.config import load_config
from astune.launcher.companion import ray_head
from astune.schema import ConfigError

ROOT = Path(__file__).parents[2]
SCRIPTS = ("scripts/install.sh", "scripts/ray_stand_in.sh")
TOOLS = (
    "bash",
    "cat",
    "cksum",
    "cp",
    "dirname",
    "env",
    "grep",
    "ln",
    "make",
    "mkdir",
    "rm",
    "sed",
    "tr",
    "uname",
    "xargs",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without an environment, and an empty folder of programs beside it."""
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    (folder / "requirements").mkdir()
    for name in ("pyproject.toml", *SCRIPTS, "requirements/constraints.txt", "Makefile"):
        shutil.copy(ROOT / name, folder / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for tool in TOOLS:
        (programs / tool).symlink_to(shutil.which(tool) or "/nonexistent")
    return folder


def program(checkout: Path, name: str, script: str) -> None:
    path = checkout.parent / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def install(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": str(checkout.parent / "bin"), "HOME": os.environ.get("HOME", "/"), "NO_UV": "1"}
    return subprocess.run(
        ["scripts/install.sh"], cwd=checkout, env=clean | environment, capture_output=True, text=True, check=False
    )


def test_without_any_python_the_version_and_the_package_are_named(checkout):
    done = install(checkout)
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed; none was found" in done.stderr
    assert "apt install python3.11" in done.stderr


def test_an_old_python_is_named_with_its_version(checkout):
    program(checkout, "python3", 'if [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi')
    assert "python3 is Python 3.9.2" in install(checkout).stderr


def test_a_named_interpreter_that_is_not_good_is_refused(checkout):
    assert "PYTHON=/no/such is no Python" in install(checkout, PYTHON="/no/such").stderr


@pytest.mark.slow
def test_a_python_without_venv_names_the_debian_package(checkout):
    program(checkout, "python3", f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"')
    done = install(checkout)
    assert done.returncode == 1
    assert "has no venv module" in done.stderr
    assert f"python3.{sys.version_info.minor}-venv" in done.stderr


def test_make_install_does_nothing_where_nothing_changed(checkout):
    with_uv(checkout)
    assert install(checkout, NO_UV="", EXTRAS="data,debug").returncode == 0
    (checkout.parent / "bin" / "python3").unlink()
    for extras in ("data,debug", "data", ""):  # there is no Python that it could find
        done = install(checkout, EXTRAS=extras)
        assert (done.returncode, done.stderr) == (0, "")
    assert install(checkout, EXTRAS="data,dev").returncode == 1
    (checkout / "pyproject.toml").write_text("changed")
    assert install(checkout, EXTRAS="data").returncode == 1


def test_extras_are_added_to_those_of_an_earlier_call(checkout):
    log = with_uv(checkout)
    for extras in ("local,agentscope", "local,dev"):
        assert install(checkout, NO_UV="", EXTRAS=extras).returncode == 0
    packages = [line.rsplit(" ", 1)[1] for line in log.read_text().splitlines() if "--editable" in line]
    assert packages == [".[local,agentscope]", ".[local,dev,agentscope]"]


def test_without_a_gpu_torch_is_the_build_for_cpus(checkout):
    log = with_uv(checkout)
    done = install(checkout, NO_UV="", EXTRAS="local")
    first, second = [line for line in log.read_text().splitlines() if " install " in line]
    assert "--no-deps --default-index https://download.pytorch.org/whl/cpu torch==" in first
    assert "pytorch.org" not in second
    assert "without CUDA" in done.stderr


def test_torch_comes_from_pypi_where_pytorchs_index_does_not_answer(checkout):
    with_uv(checkout, fails="pytorch.org")
    done = install(checkout, NO_UV="", EXTRAS="local")
    assert done.returncode == 0
    assert "has no answer; torch comes from PyPI" in done.stderr


@pytest.mark.parametrize("reason", ["a GPU", "an index of one's own", "no training"])
def test_torch_is_left_to_the_rest_of_the_packages(checkout, reason):
    log = with_uv(checkout)
    environment = {"EXTRAS": "data" if reason == "no training" else "local"}
    if reason == "a GPU":
        program(checkout, "nvidia-smi", "exit 0")
    elif reason == "an index of one's own":
        environment["PIP_EXTRA_INDEX_URL"] = "https://packages.example/simple"
    assert install(checkout, NO_UV="", **environment).returncode == 0
    assert "pytorch.org" not in log.read_text()


def test_ray_stop_is_no_error_where_ray_is_not_installed(checkout, monkeypatch):
    with_uv(checkout)
    assert install(checkout, NO_UV="", EXTRAS="data").returncode == 0
    ray = checkout / ".venv" / "bin" / "ray"
    stop, start = (subprocess.run([ray, word], capture_output=True, text=True, check=False) for word in ("stop", "up"))
    assert (stop.returncode, start.returncode) == (0, 1)
    assert "Ray is not installed in this environment" in stop.stderr
    monkeypatch.setenv("PATH", str(ray.parent))
    with pytest.raises(ConfigError, match="there is no command `ray`"):
        ray_head(load_config(None))


def with_uv(checkout: Path, fails: str = "no-such-word") -> Path:
    """A Python, and a uv that makes an empty environment and installs nothing. Returns the log of its calls."""
    log = checkout.parent / "uv.log"
    settings = "if [ $2 = pip ]; then echo \":env:.extra-index-url='$PIP_EXTRA_INDEX_URL'\" | grep http; exit; fi"
    program(checkout, "python3", f'{settings}; exec {sys.executable} "$@"')
    program(
        checkout,
        "uv",
        f'echo "$@" >> {log}; case "$*" in *{fails}*) exit 1;; esac\n'
        f"if [ $1 = venv ]; then mkdir -p .venv/bin; ln -s {sys.executable} .venv/bin/python; "
        "ln -s /bin/true .venv/bin/astune; fi",
    )
    return log
