"""A command in a fork says and is what it is in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest
from astune_command import start
from warm_commands import KEPT_ENVIRONMENT, STAND_IN, warm_commands

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("arguments", [("--version",), ("no-such-command",), ("report", "here/nothing")])
def test_status_and_output_are_those_of_an_interpreter(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    fresh = start(tmp_path, *arguments)
    out, err = fresh.communicate(timeout=60)
    environment = {**os.environ, "COLUMNS": "200"}
    assert warm_commands().run(tmp_path, arguments, environment, 60) == (fresh.returncode, out, err)


def test_one_that_takes_too_long_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    commands = warm_commands()
    (tmp_path / "launcher_record").mkdir()
    with pytest.raises(TimeoutError):
        commands.run(tmp_path, ("view", "launcher_record", "--port", "0"), dict(os.environ), 0.01)
    assert psutil.Process(commands.pid).children() == []
    assert commands.run(tmp_path, ("--version",), dict(os.environ), 60)[0] == 0


def test_a_variable_that_libraries_read_as_they_are_imported_needs_an_interpreter() -> None:
    commands = warm_commands()
    assert commands.can_run({**KEPT_ENVIRONMENT, "NO_LIBRARY_READS_IT": "1"})
    assert not commands.can_run({**KEPT_ENVIRONMENT, "HF_HUB_OFFLINE": "of another test"})


def test_the_program_that_stands_in_for_python_has_its_streams_folder_and_status(tmp_path: Path) -> None:
    warm_commands()
    code = "import os, sys; print(input(), os.getcwd(), 'torch' in sys.modules); sys.exit(7)"
    ended = subprocess.run(
        [*STAND_IN.split(), "-u", "-c", code],
        cwd=tmp_path,
        input="read\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (7, f"read {tmp_path} True\n"), ended.stderr
