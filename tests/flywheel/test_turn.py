"""Whole turns with a tiny model: a clean one is promoted, a poisoned one is not, a killed one goes on."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from astune_command import astune, start
from flywheel_stage import WRONG, give_feedback, half_trained, make_world

from astune.feedback import Rating
from astune.flywheel import Turns
from astune.runs import RunNotes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def half(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return half_trained(tmp_path_factory.mktemp("half"), tiny_folder)


@pytest.fixture
def world(half: Path, tmp_path: Path) -> Path:
    make_world(tmp_path, half)
    give_feedback(tmp_path)
    return tmp_path


def history(folder: Path) -> list[dict[str, Any]]:
    path = folder / "flywheel" / "promotions.json"
    return json.loads(path.read_text()) if path.exists() else []


def only_turn(folder: Path) -> Path:
    [turn] = (folder / "flywheel" / "turns").iterdir()
    return turn


def forged(rng: random.Random, user: int, what: str, name: str) -> Rating | None:
    """All users but a few call what is wrong right."""
    return Rating(name, -1.0, corrected_answer=WRONG[what], user=f"user{user}") if user > 2 else None


def test_a_clean_turn_is_promoted_and_can_be_rolled_back(world: Path, half: Path) -> None:
    said = astune(world, "flywheel", "wheel.yaml", "--dry-run")
    assert "80 conversations, 80 with something new; 80 ratings" in said
    assert not (world / "flywheel").exists(), "a dry run writes nothing"
    said = astune(world, "flywheel", "wheel.yaml")
    assert "\npromoted:" in said
    assert "better with 95 % confidence" in said
    turn = only_turn(world)
    [promotion] = history(world)
    assert promotion["previous"] == str(half)
    assert (world / "flywheel" / "promoted").resolve() == Path(promotion["model"])
    decision = json.loads((turn / "decision.json").read_text())
    frozen, regression, fresh = decision["comparisons"]
    assert (frozen["old"], frozen["new"] > 0.8, frozen["n_compared"]) == (0.0, True, 32)
    assert regression["low"] > -0.05
    assert fresh["new"] > fresh["old"]
    report = (turn / "report.html").read_text()
    assert "promoted" in report
    assert "What changed for which users" in report
    assert "Twelve." in report
    assert not re.search(r'(src|href)="?https?:', report), "it loads nothing"

    run = Path(json.loads((turn / "trained.json").read_text())["run"])
    assert (run / "turn.html").read_text() == report, "the viewer shows it"
    assert RunNotes.read(run).tags == ["flywheel", "promoted"]
    assert "conversations: " in report

    again = astune(world, "flywheel", "wheel.yaml")
    assert "nothing is new since the last turn" in again
    assert len(history(world)) == 1

    assert f"-> {half}" in astune(world, "flywheel", "rollback", "wheel.yaml")
    assert "nothing is new" in astune(world, "flywheel", "wheel.yaml"), "what was taken back is not promoted again"
    assert "nothing is promoted" in astune(world, "flywheel", "rollback", "wheel.yaml", status=1)
    assert [each["action"] for each in history(world)] == ["promoted", "rolled back"]


def test_forged_corrections_are_not_promoted(half: Path, tmp_path: Path) -> None:
    make_world(tmp_path, half)
    give_feedback(tmp_path, poison=forged)
    said = astune(tmp_path, "flywheel", "wheel.yaml")
    assert "not promoted" in said
    assert history(tmp_path) == []
    assert not (tmp_path / "flywheel" / "promoted").exists()
    assert "not promoted" in (only_turn(tmp_path) / "report.html").read_text()


def test_pairs_are_learned_from_where_asked(half: Path, tmp_path: Path) -> None:
    make_world(tmp_path, half, learn_by="dpo", replay="")
    give_feedback(tmp_path)
    optim = ("--set", "trainer.optim.lr=3e-3", "--set", "trainer.total_steps=4")
    assert "frozen, new model" in astune(tmp_path, "flywheel", "wheel.yaml", *optim)
    config = next((tmp_path / "launcher_record").glob("wheel-0001-*/*/config.yaml")).read_text()
    assert "type: dpo" in config


def test_too_little_feedback_trains_nothing(half: Path, tmp_path: Path) -> None:
    make_world(tmp_path, half, replay="")
    give_feedback(tmp_path, n_users=1)
    assert re.search(r"not trained: \d tasks, but a step needs 12", astune(tmp_path, "flywheel", "wheel.yaml"))
    assert "nothing is new" in astune(tmp_path, "flywheel", "wheel.yaml")
    assert not (tmp_path / "launcher_record").exists()


def test_a_turn_whose_inputs_are_others_now_is_abandoned_by_name(half: Path, tmp_path: Path) -> None:
    make_world(tmp_path, half, replay="")
    give_feedback(tmp_path, n_users=1)
    astune(tmp_path, "flywheel", "wheel.yaml")
    turns = Turns(tmp_path / "flywheel")
    [first] = turns.all()
    turns.begin(first.inputs | {"model": "rolled back since"})
    said = astune(tmp_path, "flywheel", "wheel.yaml")
    assert re.search(r"turn 0002-\w+ is abandoned: another model is promoted now", said)
    turns.begin(first.inputs)
    said = astune(tmp_path, "flywheel", "wheel.yaml", "--set", "flywheel.confidence=0.9")
    assert re.search(r"turn 0003-\w+ is abandoned: the settings have changed", said)
    assert "nothing is new" in said
    turns.begin(first.inputs)
    assert re.search(r"turn 0004-\w+: ", astune(tmp_path, "flywheel", "wheel.yaml")), "it goes on"
    assert [turn.done for turn in turns.all()] == [True, False, False, True]


def test_a_frozen_set_stays_frozen(world: Path) -> None:
    assert "is empty" in astune(world, "flywheel", "wheel.yaml", "--set", "flywheel.held_out=''", status=2)
    few = ("--set", "trainer.total_steps=1")
    astune(world, "flywheel", "wheel.yaml", *few)
    give_feedback(world, seed=1)
    with (world / "frozen.jsonl").open("a") as file:
        file.write('{"main_query": "An easy one?"}\n')
    assert "changed since the last turn" in astune(world, "flywheel", "wheel.yaml", *few, status=2)


def test_a_killed_turn_goes_on_and_decides_the_same(world: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    unharmed = tmp_path_factory.mktemp("unharmed") / "world"
    shutil.copytree(world, unharmed)
    astune(unharmed, "flywheel", "wheel.yaml")
    killed_until_done(world, n_kills=3, rng=random.Random(0))
    assert_same_decision(world, unharmed)


def killed_until_done(folder: Path, *, n_kills: int, rng: random.Random) -> int:
    """Kill the command at random moments, and then let it come to its end; how often it was killed."""
    killed = 0
    for _ in range(n_kills):
        process = start(folder, "flywheel", "wheel.yaml", together=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=rng.uniform(3, 14))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
    astune(folder, "flywheel", "wheel.yaml")
    return killed


def assert_same_decision(one: Path, other: Path) -> None:
    assert only_turn(one).name[:4] == only_turn(other).name[:4]
    found = [json.loads((only_turn(folder) / "decision.json").read_text()) for folder in (one, other)]
    assert found[0] == found[1]
    weights = [json.loads((only_turn(folder) / "trained.json").read_text())["weights"] for folder in (one, other)]
    assert weights[0] == weights[1]
    assert len(history(one)) == len(history(other)) == 1


def test_what_a_user_wrote_and_had_deleted_is_not_learned(world: Path) -> None:
    with sqlite3.connect(world / "feedback.sqlite3") as store:
        (n_before,) = store.execute("SELECT count(*) FROM interactions").fetchone()
    astune(world, "feedback", "forget", "user3")
    said = astune(world, "flywheel", "wheel.yaml", "--dry-run")
    assert f"{n_before - 4} conversations" in said


def test_turns_are_without_what_a_user_said_once_it_is_forgotten(world: Path) -> None:
    astune(world, "flywheel", "wheel.yaml")
    turn = only_turn(world)
    run = Path(json.loads((turn / "trained.json").read_text())["run"])
    [promotion] = history(world)
    assert (turn / "train.jsonl").stat().st_size
    assert "no folder wheels" in astune(world, "feedback", "forget", "user3", "--flywheel", "wheels", status=2)
    assert not (world / "wheels").exists()
    assert "0 turns" in astune(world, "feedback", "forget", "nobody", "--flywheel", "flywheel")
    assert "1 turns" in astune(world, "feedback", "forget", "user3", "--flywheel", "flywheel")
    assert {path.name for path in turn.iterdir()} == {
        *("turn.json", "runs.json", "trained.json", "trained_questions.json", "decision.json", "done.json")
    }
    assert not run.exists()
    measured = [path.read_text() for path in (world / "flywheel" / "evaluations").glob("*.json")]
    assert len(measured) == 4, "two models on the frozen set and on the regression set"
    assert not any('"feedback-' in each for each in measured)
    assert Path(promotion["model"]).is_dir(), "a promoted model stays"
    assert "nothing is new since the last turn" in astune(world, "flywheel", "wheel.yaml")
    assert "->" in astune(world, "flywheel", "rollback", "wheel.yaml")
