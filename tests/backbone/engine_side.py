"""Scripts beside these tests that run in an engine's own environment, which is not everywhere."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest


def python_of(engine: str) -> Path:
    return Path(f".venv-{engine}/bin/python")


def needs(engine: str) -> list[pytest.MarkDecorator]:
    """The marks of tests that run there."""
    away = not python_of(engine).is_file()
    return [
        pytest.mark.slow,
        pytest.mark.skipif(away, reason=f"needs {engine}'s environment: make env-{engine}"),
    ]


def answer_of(engine: str, script: str, asked: Any = None, **variables: str) -> Any:
    """What a script prints last, in JSON, where it is asked something in JSON on its standard input."""
    done = subprocess.run(
        [python_of(engine), Path(__file__).with_name(script)],
        check=False,
        input=json.dumps(asked),
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
