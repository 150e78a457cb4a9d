"""Format, lint and types hold: what `make check` runs beside the fast tests, so that CI sees it too."""

from __future__ import annotations

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
