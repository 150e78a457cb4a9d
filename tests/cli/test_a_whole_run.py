"""A run from the command line, ended by Ctrl-C, resumed and used: on a tiny model, where nothing is to be learnt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from astune_command import ROOT, astune, interrupted_at, start

from astune.config import load_config
from astune.runs import RunDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("user")


@pytest.fixture(scope="module")
def settings(tiny_folder: Path) -> list[str]:
    values = {
        "model.path": tiny_folder,
        "trainer.total_steps": 600,
        "trainer.tasks_per_step": 2,
        "rollout.num_repeat": 2,
        "trainer.test_freq": 30,
        "trainer.validation.max_tasks": 4,
        "rollout.max_response_length_in_one_turn": 8,
    }
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def interrupted(folder: Path, settings: list[str]) -> Path:
    """The folder of a run that Ctrl-C ended after its first steps."""
    lines, rest, err = interrupted_at(start(folder, "demo", *settings), "step 2/600")
    match = re.search(r"continue with: astune --resume (\S+)", rest)
    assert match is not None, "".join(lines) + rest + err
    assert "Traceback" not in err
    return Path(match[1])


@pytest.fixture(scope="module")
def refused(folder: Path, interrupted: Path) -> str:
    """The end of an attempt to go on with all weights where adapters were trained."""
    return astune(folder, "--resume", str(interrupted), "--set", "model.lora.rank=0", status=1)


@pytest.fixture(scope="module")
def finished(folder: Path, interrupted: Path, refused: str) -> Path:
    """The same run, resumed with another length after that attempt, and finished."""
    step = RunDirectory.open(interrupted).checkpoints.latest().step
    out = astune(folder, "--resume", str(interrupted), "--set", f"trainer.total_steps={step + 2}")
    assert f"astune.trainer.total_steps: 600 -> {step + 2}" in out
    assert out.rstrip().splitlines()[-1].startswith("held-out success ")
    return interrupted


def test_an_interrupted_run_says_how_to_go_on_and_has_lost_nothing(interrupted):
    run = RunDirectory.open(interrupted)
    assert run.info().status == "interrupted"
    assert run.checkpoints.latest().step >= 2


def test_settings_with_which_a_run_cannot_go_on_are_not_kept(refused, finished):
    assert "resume with the model and the LoRA rank" in refused
    assert load_config(RunDirectory.open(finished).config_path).model.lora.rank == 16


def test_a_resumed_run_goes_on_where_it_ended(finished):
    run = RunDirectory.open(finished)
    assert run.info().status == "finished"
    steps = [line.step for line in run.metrics() if line.kind == "train"]
    assert steps == list(range(1, steps[-1] + 1))
    assert len(list(run.backup.glob("resumed_*"))) == 2


def test_its_report_can_be_printed_again(folder, finished):
    assert "held-out success" in astune(folder, "report", str(finished)).rstrip().splitlines()[-1]


def test_every_call_of_it_replays_token_for_token(folder, finished):
    assert "every one replays token for token" in astune(folder, "replay", str(finished), "--check")


def test_its_best_model_is_exported_whole_and_loads(folder, finished):
    out = astune(folder, "export", str(finished), "--to", "exported")
    assert "the model of step" in out
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoModelForCausalLM.from_pretrained(folder / "exported").num_parameters() > 0
    assert AutoTokenizer.from_pretrained(folder / "exported").chat_template
    again = start(folder, "export", str(finished), "--to", "exported")
    assert "exists already" in again.communicate(timeout=60)[1]
    assert again.returncode == 1


def test_one_question_is_answered(folder, finished):
    assert astune(folder, "chat", str(finished), "--message", "What is 1 + 1?")


@pytest.mark.parametrize("which", ["a run", "a folder"])
def test_a_model_is_measured_on_the_held_out_tasks(which, folder, finished, settings, tiny_folder):
    model = str(finished) if which == "a run" else str(tiny_folder)
    out = astune(folder, "eval", str(ROOT / "tutorial/example_calculator/calculator.yaml"), "--model", model, *settings)
    assert re.search(r"success\s.*0\.\d{3}\s+\[95 % 0\.\d{3} to \d\.\d{3}\]", out), out
    assert "4 of 4 tasks" in out


def test_a_cleaned_run_is_reported_and_used_and_not_resumed(folder, finished):
    assert f"are only for resuming: astune clean {finished.relative_to(folder)}" in astune(
        folder, "report", str(finished)
    )
    size = sum(file.stat().st_size for file in (finished / "checkpoints").rglob("*") if file.is_file())
    assert "would be removed" in astune(folder, "clean", str(finished), "--dry-run")
    assert sum(file.stat().st_size for file in (finished / "checkpoints").rglob("*") if file.is_file()) == size
    out = astune(folder, "clean", "calculator")
    assert "the run cannot be resumed" in out
    assert {path.name for path in (finished / "checkpoints").glob("*/*")} == {"checkpoint.json", "model"}
    assert "only for resuming" not in astune(folder, "report", str(finished))
    assert astune(folder, "export", str(finished), "--to", "of-cleaned")
    assert "was cleaned" in astune(folder, "--resume", str(finished), status=1)
