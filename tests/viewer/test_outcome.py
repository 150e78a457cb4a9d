"""What a run came to: before and after with intervals, what was trained, warnings, three episodes worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from viewer_stage import get, make_episode, serving, writing

from astune.runs import RunDirectory, balance_metrics, runs_below
from astune.runs.report import read_report
from astune.schema import TokenBalance


def write(folder: Path, measured: dict[int, Sequence[bool]], scores: dict[int, float] | None = None) -> None:
    """A run whose held-out tasks 0, 1, ... succeed as given by step; its only training step is 1."""
    with writing(folder) as run, run.open_episodes() as store, run.open_metrics() as metrics:
        for step, successes in measured.items():
            for number, success in enumerate(successes):
                answer = f"step {step} says {number}"
                store.append(
                    make_episode(split="validation", step=step, task=f"t{number}", reward=float(success), answer=answer)
                )
            rate = sum(successes) / len(successes)
            success = (scores or {}).get(step, rate)
            metrics.append(step, "validation", {"reward/success_rate": rate, "reward/success_of_all": success})
            if step == 0:
                for number, advantage in enumerate((-0.5, 2.5, -0.5)):
                    store.append(make_episode(number, answer=f"training says {number}"), [advantage])
                balance = TokenBalance(sampled=100, trained=70)
                balance.dropped["group has no variance"] = 30
                metrics.append(1, "train", balance_metrics(balance) | {"time/trained_s": 12.5})
        store.append(make_episode(step=2, task="of a step that did not end"))


def outcome(folder: Path) -> dict[str, Any]:
    with serving(folder) as client:
        [run] = get(client, "runs")
        return get(client, "outcome", run=run["run"])


def test_before_is_the_first_measurement_and_after_the_first_of_the_best(tmp_path):
    write(tmp_path, {0: [True, False, False, False], 2: [True] * 3 + [False], 4: [True] * 3 + [False], 6: [False] * 4})
    told = outcome(tmp_path)
    assert (told["before"]["step"], told["before"]["success"]) == (0, 0.25)
    assert (told["after"]["step"], told["after"]["success"], told["measurements"]) == (2, 0.75, 4)
    assert (told["before"]["low"], told["before"]["high"]) == pytest.approx((0.0456, 0.6994), abs=1e-4)
    assert (told["after"]["low"], told["after"]["high"]) == pytest.approx((0.3006, 0.9544), abs=1e-4)


@pytest.mark.parametrize("later", [[True, False], [True, True]], ids=["worse", "as good"])
def test_where_none_is_better_after_is_the_first_of_the_best_as_in_the_report(tmp_path, later):
    write(tmp_path, {0: [True, True], 2: later, 4: later, 6: [False, False]})
    told = outcome(tmp_path)
    assert (told["before"]["step"], told["after"]["step"]) == (0, 2)
    [path] = runs_below(tmp_path)
    run = RunDirectory.open(path)
    for step, score in ((2, sum(later) / 2), (4, sum(later) / 2), (6, 0.0)):
        run.checkpoints.save(step, model=lambda folder: None, score=score)
    after = read_report(run).after
    assert after is not None
    assert after.step == 2


def test_a_measurement_in_which_nothing_finished_is_one_without_a_success(tmp_path):
    with writing(tmp_path) as run, run.open_episodes() as store, run.open_metrics() as metrics:
        for step in (0, 2):
            for task in range(4):
                error = "EnvError: away" if step else None
                store.append(make_episode(split="validation", step=step, task=f"t{task}", error=error))
            values = {"reward/success_of_all": float(not step), "episodes/unfinished": 4.0 if step else 0.0}
            metrics.append(step, "validation", values)
    with serving(tmp_path) as client:
        [found] = get(client, "runs")
        [_, step] = get(client, "run", run=found["run"])["steps"]
    assert (step["step"], step["episodes"], step["interval"]) == (2, 4, [0.0, pytest.approx(0.4899, abs=1e-4)])


def test_what_did_not_finish_counts_as_failed_when_the_best_is_chosen(tmp_path):
    write(tmp_path, {0: [False, False], 2: [True, True], 4: [True, False]}, scores={2: 0.2})
    assert outcome(tmp_path)["after"]["step"] == 4


def test_a_run_says_what_was_trained_and_where_its_tokens_went(tmp_path):
    write(tmp_path, {0: [True], 2: [True]})
    told = outcome(tmp_path)
    assert told["trained"] | {"elapsed_s": 0} == {
        "steps": 1,
        "tasks": 1,
        "episodes": 3,
        "seconds": 12.5,
        "elapsed_s": 0,
    }
    assert told["balance"] == {"sampled": 100, "trained": 70, "masked": {}, "dropped": {"group has no variance": 30}}


def test_three_episodes_are_worth_a_look(tmp_path):
    write(tmp_path, {0: [True, False, True, False], 2: [True, True, False, True]})
    found = {each["kind"]: each for each in outcome(tmp_path)["episodes"]}
    solved, broken, surprising = found["solved"], found["broken"], found["surprising"]
    assert (solved["row"]["task_id"], solved["row"]["step"], solved["answer"]) == ("t1", 2, "step 2 says 1")
    assert solved["before"] == "validation-000000-t1-000-1"
    assert (broken["row"]["task_id"], broken["row"]["status"]) == ("t2", "failed")
    assert (surprising["row"]["advantage"], surprising["answer"]) == (2.5, "training says 1")
    assert surprising["question"] == "What is 1 + 1?"


def test_a_run_without_anything_has_an_outcome_without_anything(tmp_path):
    with writing(tmp_path) as run:
        (run.path / "rollout" / "episodes.sqlite").unlink()
    told = outcome(tmp_path)
    assert (told["before"], told["after"], told["warnings"], told["episodes"]) == (None, None, [], [])
