"""`astune report` of several runs: the start, prompts that were searched, and trained models, in one table."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from astune_command import astune
from test_report import episode, generated  # noqa: F401 - a fixture

from astune.runs import RunDirectory

START, FOUND = {"system_prompt": "Answer it."}, {"system_prompt": "Answer it, in digits."}


def configured(path: Path, params: dict[str, str], **settings: Any) -> Path:
    (path / "config.yaml").write_text(yaml.safe_dump({"astune": {"rollout": {"params": params}, **settings}}))
    return path


@pytest.mark.slow
def test_four_rows_say_what_prompts_and_training_came_to(generated: Callable[..., Path], tmp_path: Path) -> None:  # noqa: F811
    searched = configured(generated(), START)
    (searched / "best_prompts.yaml").write_text(yaml.safe_dump({"astune": {"rollout": {"params": FOUND}}}))
    trained, from_best = configured(generated(best=2), START), configured(generated(), FOUND)
    told = astune(tmp_path, "report", str(searched), str(trained), str(from_best))
    rows = [[cell.strip() for cell in line.split("│")[1:4]] for line in told.splitlines() if line.startswith("│")]
    assert rows == [
        ["start", "0.12", "0.02 to 0.47"],
        ["best prompts", "0.88", "0.53 to 0.98"],
        ["trained", "0.50", "0.22 to 0.78"],
        ["trained from the best prompts", "0.88", "0.53 to 0.98"],
    ]
    assert "each measured on the same 8 held-out tasks" in told
    assert "different" not in told
    for run in (searched, trained, from_best):
        assert f"{run.parent.name}/{run.name}" in re.sub(r"[│\s]", "", told)


@pytest.mark.slow
def test_other_settings_of_the_measurements_are_named(generated: Callable[..., Path], tmp_path: Path) -> None:  # noqa: F811
    sampled = configured(generated(), START)
    greedy = configured(generated(), START, trainer={"validation": {"temperature": 0, "num_repeat": 4}})
    told = astune(tmp_path, "report", str(sampled), str(greedy))
    assert f"measured with different trainer.validation.temperature: 1 in {sampled.name}, 0 in {greedy.name}" in told
    assert f"different trainer.validation.num_repeat: 1 in {sampled.name}, 4 in {greedy.name}" in told


@pytest.mark.slow
def test_runs_that_were_measured_on_other_tasks_are_not_compared(
    generated: Callable[..., Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    one, other = configured(generated(), START), configured(generated(), START)
    with RunDirectory.open(other, write=True) as run, run.open_episodes() as episodes:
        episodes.append(episode(0, 8, "validation", success=True, answer="64"))
    assert "other held-out tasks" in astune(tmp_path, "report", str(one), str(other), status=1)


@pytest.mark.slow
@pytest.mark.parametrize("made", [{"steps": 1}, {"validate": False}])
def test_a_run_without_two_measurements_is_named(
    generated: Callable[..., Path],  # noqa: F811
    tmp_path: Path,
    made: dict[str, int],
) -> None:
    one, other = configured(generated(), START), configured(generated(**made), START)
    assert "no measurement before and after" in astune(tmp_path, "report", str(one), str(other), status=1)
