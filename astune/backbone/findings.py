"""Findings of `astune doctor`: one line of its table each, and the line that fixes a problem."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Literal

_IMPORT_S = 180.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the table; `fix` is the line to run or write, for a problem."""

    what: str
    state: Literal["ok", "note", "problem"]
    detail: str
    fix: str = ""


def imported_version(package: str, python: str) -> tuple[str | None, str]:
    """The version of a package that an interpreter imports; or None, and why it does not."""
    asking = [python, "-c", f"import {package}; print({package}.__version__)"]
    try:
        asked = subprocess.run(
            asking, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True, timeout=_IMPORT_S, check=False
        )
    except OSError as cause:
        return None, cause.strerror or str(cause)
    except subprocess.TimeoutExpired:
        return None, f"importing {package} took longer than {_IMPORT_S:g} s"
    last = (asked.stdout if asked.returncode == 0 else asked.stderr).strip().splitlines()[-1:]
    text = last[0] if last else f"it ended with status {asked.returncode}"
    return (text, "") if asked.returncode == 0 else (None, text)
