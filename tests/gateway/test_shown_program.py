"""The page's programs, run by the page's one line with a model behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from astune_command import astune
from shown_files import ROOT, write_files

from astune.runs import RunDirectory, resolve_run

PAGE = ROOT / "docs" / "en" / "any_agent.md"


@pytest.mark.slow
@pytest.mark.parametrize("shown", ["my_program.py", "with_parse.py"])
def test_the_pages_one_line_runs_a_program_with_openais_sdk(shown: str, tiny_folder: Path, tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    lines = [json.dumps({"main_query": f"What is {number} + 1?"}) for number in range(2)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith("astune train --tasks")]
    flags, _, command = line.removeprefix("astune train ").partition(" -- ")
    limits = ["--set", "rollout.max_model_len=256", "--set", "rollout.max_response_length_in_one_turn=32"]
    assert command == "python my_program.py"
    program = [sys.executable, shown]
    asked = ["train", *flags.split(), "--backbone", "debug", "--model", str(tiny_folder), *limits, "--", *program]
    ran = subprocess.run(
        [sys.executable, "-m", "astune", *asked],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    run = RunDirectory.open(resolve_run(None, record_dir=tmp_path / "launcher_record"))
    episodes = list(run.episodes().episodes())
    assert len(episodes) == 2
    assert all(episode.judge_inputs["exit_status"] == 0 for episode in episodes), episodes[0].judge_inputs
    assert all(isinstance(episode.judge_inputs["final_answer"], str) for episode in episodes)


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "named"), [(1, True), (0, False), (2, False)])
def test_a_judges_file_is_enough_where_it_has_one_class(classes: int, named: bool, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"main_query": "Hi", "task_id": "a"}))
    judge = "from astune import JudgeBase\n" + "".join(
        f"class J{n}(JudgeBase):\n    def compute_reward(self, d):\n        return 1.0, True\n" for n in range(classes)
    )
    (tmp_path / "judge.py").write_text(judge)
    asked = ["train", "--tasks", "tasks.jsonl", "--judge", "judge.py", "--dry-run"]
    one = ["--set", "trainer.tasks_per_step=1", "--", "sh", "-c", "true --resume"]
    shown = astune(tmp_path, *asked, *one, status=0 if named else 2)
    if named:
        assert "judge.py->J0" in shown
        assert "true --resume" in shown
    else:
        assert f"has {classes} classes with a method compute_reward" in shown
