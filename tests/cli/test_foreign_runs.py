"""A run that somebody else made brings no code that runs unasked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from astune_command import astune
from examples import some
from terminal import on_a_terminal, read_until

from astune.config import import_class
from astune.config.code_of_runs import no_code_of
from astune.runs import RunDirectory, outermost_run
from astune.schema import ConfigError
from astune.task_judge import JudgeBase

JUDGE = """
from pathlib import Path
Path({mark!r}).write_text("ran")
from astune.task_judge import JudgeBase

class Judge(JudgeBase):
    def compute_reward(self, judge_input_dictionary):
        return 1.0, True
"""


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What the run's code would leave behind."""
    return tmp_path / "mark"


def foreign_run(folder: Path, mark: Path, reference: str, file: str) -> Path:
    """A run whose configuration names its judge by `reference`, which lies in the run's own `file`."""
    with RunDirectory.create(folder, "demo") as run:
        run.save_config(f"astune:\n  task_judge: {{judge_protocol: '{reference.format(run=run.path)}'}}\n")
    (run.path / file).parent.mkdir(parents=True, exist_ok=True)
    (run.path / file).write_text(JUDGE.format(mark=str(mark)))
    (run.path / "backup" / "manifest.json").write_text(json.dumps({"config_path": str(run.path / "conf.yaml")}))
    return run.path


@pytest.mark.parametrize(
    ("reference", "file"),
    some([("{run}/backup/sources/j.py->Judge", "backup/sources/j.py"), ("judge.py->Judge", "judge.py")], 1),
)
@pytest.mark.slow
def test_replay_does_not_import_the_judge_that_a_run_brings(tmp_path: Path, mark: Path, reference: str, file: str):
    run = foreign_run(tmp_path, mark, reference, file)
    told = astune(tmp_path, "replay", str(run), status=2)
    assert not mark.exists()
    assert f"task_judge.judge_protocol: {run / file} is part of the run" in told
    assert "--trust-code" in told
    assert "has no judged episodes" in astune(tmp_path, "replay", str(run), "--trust-code", status=1)
    assert mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "imported"), [("\n", False), ("y\n", True)])
def test_on_a_terminal_replay_asks_first(tmp_path: Path, mark: Path, answer: str, imported: bool):
    run = foreign_run(tmp_path, mark, "judge.py->Judge", "judge.py")
    with on_a_terminal(tmp_path, "replay", str(run)) as (process, terminal):
        read_until(terminal, "Import it? (y/N)")
        assert not mark.exists()
        os.write(terminal, answer.encode())
        read_until(terminal, "has no judged episodes" if imported else "is part of the run, and")
        process.wait(timeout=60)
    assert mark.exists() is imported


@pytest.mark.parametrize("here", [".", "runs/run", "runs"])
@pytest.mark.parametrize(
    "reference", ["judge->Judge", "runs.run.judge->Judge", "run.package.judge->Judge", "package->Judge"]
)
def test_a_module_in_a_run_is_not_imported_from_wherever_it_is_named(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, here: str, reference: str
):
    run = tmp_path / "runs" / "run"
    for file in ("judge.py", "package/__init__.py", "package/judge.py"):
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / file).write_text(JUDGE.format(mark=str(mark)))
    monkeypatch.chdir(tmp_path / here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError), no_code_of(run):
        import_class(reference, key="key", base=JudgeBase, base_dir=run)
    assert not mark.exists()
    assert not [folder for folder in sys.path if Path(folder).resolve().is_relative_to(run)]


def test_what_a_resume_moved_away_belongs_to_its_run(tmp_path: Path):
    with RunDirectory.create(tmp_path, "demo") as run:
        moved = run.path / "superseded" / "1"
        moved.mkdir(parents=True)
        (moved / "run.json").write_text("{}")
    assert outermost_run(moved) == outermost_run(run.path) == run.path
