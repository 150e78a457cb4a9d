"""Descriptors that an agent closed are opened again, so that no file of ours gets their numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import os, sys
from astune.processes.standard_descriptors import refill_standard_descriptors
before = len(os.listdir("/dev/fd"))
refill_standard_descriptors()
assert len(os.listdir("/dev/fd")) == before
os.close(0), os.close(2)
refill_standard_descriptors()
assert os.write(2, b"nowhere") == 7 and os.read(0, 1) == b""
assert open(sys.argv[1], "w").fileno() > 2
print("whole")
"""


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, str(tmp_path / "file")]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("whole\n", "")
