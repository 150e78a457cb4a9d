from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

PYTHON = Path(".venv-verl/bin/python")
SIDE = Path(__file__).parent / "verl_algorithms_side.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.is_file(), reason="needs verl's environment: make env-verl"),
]


def test_algorithms_have_the_advantages_and_gradients_of_verls_own_of_the_same_name() -> None:
    done = subprocess.run([PYTHON, SIDE], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    differences: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    assert len(differences) == 12
    assert max(differences.values()) < 2e-5, differences
