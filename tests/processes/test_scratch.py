"""Temporary folders end with the process that made them, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from astune.processes import scratch

ROOT = Path(__file__).parents[2]
MAKER = """
import sys, time
from astune.processes.scratch import Scratch
print(Scratch("test").path, flush=True)
time.sleep(60)
"""


def test_the_folder_of_a_killed_process_is_removed_by_the_next_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = [_maker(tmp_path) for _ in range(2)]
    try:
        killed, living = (Path(maker.stdout.readline().strip()) for maker in makers if maker.stdout)
        (killed / "left").mkdir()
        makers[0].kill()
        makers[0].wait()
        assert scratch.sweep(tmp_path) == [], "one as new as this may not have its lock yet"
        monkeypatch.setattr(scratch, "_NEW_S", -1)
        assert scratch.sweep(tmp_path) == [killed]
        assert not killed.exists()
        assert living.is_dir()
    finally:
        for maker in makers:
            maker.kill()
            maker.communicate()


def test_links_and_what_others_made_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "astune-tmp-link").symlink_to(tmp_path / "precious")
    (tmp_path / "astune-other").mkdir()
    monkeypatch.setattr(scratch, "_NEW_S", -1)
    assert scratch.sweep(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "astune-tmp-link", "astune-other"}


def _maker(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    return subprocess.Popen([sys.executable, "-c", MAKER], env=environment, stdout=subprocess.PIPE, text=True)
