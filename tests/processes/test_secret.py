"""Secrets in the environment are taken, and stand nowhere in /proc after that."""

import json
import os
import subprocess
import sys

import pytest

TAKES = """
import json, os, subprocess
from pathlib import Path
from astune.processes.secret import take_variable

taken = [take_variable(name) for name in ("A_TOKEN", "EMPTY", "MISSING")]
shown = Path("/proc/self/environ").read_bytes().decode()
child = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
print(json.dumps([taken, shown, child, os.environ["KEPT"]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_taken_variable_is_shown_to_nobody() -> None:
    environment = {"PATH": os.environ["PATH"], "A_TOKEN": "täg-secret", "NOT_A_TOKEN": "1", "EMPTY": "", "KEPT": "k"}
    ran = subprocess.run([sys.executable, "-c", TAKES], env=environment, capture_output=True, text=True, check=True)
    taken, shown, child, kept = json.loads(ran.stdout)
    assert taken == ["täg-secret", None, None]
    assert "secret" not in shown + child
    assert "NOT_A_TOKEN=1" in shown
    assert "NOT_A_TOKEN=1" in child
    assert kept == "k"


def test_it_is_read_from_this_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from astune.processes.secret import take_variable

    monkeypatch.setenv("SET_LATER", "value")
    assert take_variable("SET_LATER") == "value"
    assert "SET_LATER" not in os.environ
