"""Format, lint and types hold, and what make gives its commands: so that CI sees it too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ruff format --check .", "ruff check .", "pyright"])
def test_holds(command):
    program, *arguments = command.split()
    done = subprocess.run(
        [str(Path(sys.executable).parent / program), *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_make_writes_bytecode_whatever_the_shell_says():
    show = 'include Makefile\nshow:\n\t@echo "[$$PYTHONDONTWRITEBYTECODE]"\n'
    done = subprocess.run(
        ["make", "-f", "-", "show"],
        input=show,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr
