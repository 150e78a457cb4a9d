"""scripts/install.sh where something is missing: it says what, and how to get it. Nothing is installed here."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "cat", "cksum", "dirname", "env", "grep", "make", "rm", "sed", "tr", "xargs")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without an environment, and an empty folder of programs beside it."""
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    (folder / "requirements").mkdir()
    for name in ("pyproject.toml", "scripts/install.sh", "requirements/constraints.txt", "Makefile"):
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


def test_a_python_without_venv_names_the_debian_package(checkout):
    program(checkout, "python3", f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"')
    done = install(checkout)
    assert done.returncode == 1
    assert "has no venv module" in done.stderr
    assert f"python3.{sys.version_info.minor}-venv" in done.stderr


def test_make_install_does_nothing_where_nothing_changed(checkout):
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "astune").symlink_to("/bin/true")
    state = subprocess.run(
        "(cat pyproject.toml requirements/constraints.txt scripts/install.sh && echo core) | cksum",
        cwd=checkout,
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    (checkout / ".venv" / "astune-installed").write_text(state.stdout)
    done = install(checkout, EXTRAS="core")  # there is no Python that it could find
    assert (done.returncode, done.stderr) == (0, "")
    (checkout / "pyproject.toml").write_text("changed")
    assert install(checkout, EXTRAS="core").returncode == 1
