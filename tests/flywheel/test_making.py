"""New tasks and rubrics that a turn makes of feedback, with models of rules behind a real server, and no training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from answering import answering
from flywheel_stage import make_world
from rule_models import SumModel, use_own_cache
from test_rubrics import careful_model
from test_stages import flywheel

from astune.app.experiment import Experiment
from astune.app.flywheel_inputs import Inputs
from astune.app.flywheel_stages import Stages
from astune.feedback import FeedbackStore, Interaction, Rating
from astune.flywheel import Turns
from astune.schema import ConfigError
from tutorial.example_calculator.tasks import make_tasks

FEW = "trainer.tasks_per_step=1000"  # a turn then makes its tasks and its rubrics, and trains nothing
REINFORCED = ("flywheel.learn_by=reinforcement", "trainer.algorithm=grpo", FEW)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> Path:
    use_own_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.chdir(tmp_path)
    make_world(tmp_path, tiny_folder, replay="")
    return tmp_path


def said(store: FeedbackStore, name: str, question: str, answer: str, rating: Rating) -> None:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    store.add(Interaction(name, messages, name, f"user {name}"))
    store.rate(rating)


@pytest.mark.slow
def test_corrected_failures_become_new_tasks_and_accepted_answers_do_not(world: Path) -> None:
    problems = make_tasks("train", 9)
    store = FeedbackStore(world / "feedback.sqlite3")
    for number, problem in enumerate(problems):
        right = str(problem.metadata["answer"])
        rating = Rating(f"i{number}", -1.0, corrected_answer=right)
        asked = problem.main_query
        said(store, f"i{number}", asked, "7", Rating(f"i{number}", 1.0) if number == 8 else rating)
    same = str(problems[0].metadata["answer"])
    said(store, "twin", f"  {problems[0].main_query.upper()}", "7", Rating("twin", -1.0, corrected_answer=same))
    store.close()
    with answering(SumModel()) as server:
        wheel, lines = flywheel(
            world / "wheel.yaml", *REINFORCED, f"helper_model.base_url={server.url}", "flywheel.expand=12",
            "task_reader.data_generation.axes=[numbers,wording]", "task_reader.feedback_tracing.held_out=0",
        )  # fmt: skip
        outcome = wheel.turn()
    assert outcome.turn is not None
    folder = outcome.turn.folder
    seeds = [json.loads(line) for line in (folder / "seeds.jsonl").read_text().splitlines()]
    assert {each["main_query"].strip().lower() for each in seeds} == {each.main_query.lower() for each in problems[:8]}
    assert len(seeds) == 8, "one of those that are nearly the same"
    made = [json.loads(line) for line in (folder / "expanded.jsonl").read_text().splitlines()]
    assert len(made) == 12
    assert f"  12 new tasks from {len(seeds)} corrected failures" in lines
    assert not {each["main_query"] for each in made} & {each["main_query"] for each in seeds}
    assert outcome.decision is not None
    n = len((folder / "train.jsonl").read_text().splitlines())
    assert outcome.decision.reasons == [f"not trained: {n + 12} tasks, but a step needs 1000"]
    assert "<td>12</td>" in (folder / "report.html").read_text().replace(' class="number"', "")


@pytest.mark.slow
def test_rubrics_are_learned_from_ratings_and_used_for_training_alone(world: Path) -> None:
    kind = {True: "please, and thank you: a cup of it", False: "no"}
    store = FeedbackStore(world / "feedback.sqlite3")
    for number in range(24):
        good = number % 2 == 0
        said(store, f"i{number}", f"How much? ({number // 2})", kind[good], Rating(f"i{number}", 1.0 if good else -1.0))
    store.close()
    (world / "own.yaml").write_text(yaml.safe_dump({"rubrics": [{"text": "The answer is short.", "weight": 1.0}]}))
    judge = ("task_judge.judge_protocol=rubrics", "task_judge.params.file=own.yaml", "flywheel.rubrics=true")
    with answering(careful_model) as server:
        overrides = (*REINFORCED, *judge, f"helper_model.base_url={server.url}")
        wheel, lines = flywheel(world / "wheel.yaml", *overrides)
        outcome = wheel.turn()
    assert outcome.turn is not None
    learned = outcome.turn.result("rubrics")["rubrics"]
    assert {text for _, text in learned} <= {f"The answer is {q}." for q in ("polite", "thankful", "precise", "long")}
    assert learned
    assert any("The answer is" in line for line in lines)
    assert "Rubrics learned" in (outcome.turn.folder / "report.html").read_text()
    experiment = Experiment.of(world / "wheel.yaml", overrides)
    stages = Stages(experiment, outcome.turn, world / "flywheel", None, Inputs.of(experiment))  # type: ignore[arg-type]
    trained_with = stages._new_run().config.task_judge.params["file"]
    assert trained_with == str(outcome.turn.folder / "rubrics.yaml")
    assert experiment.config.task_judge.params["file"] == "own.yaml", "models are compared with what no user can change"


def test_equal_labels_teach_no_rubrics_and_end_no_turn(world: Path) -> None:
    store = FeedbackStore(world / "feedback.sqlite3")
    for number in range(4):
        said(store, f"i{number}", f"How much? ({number})", "please", Rating(f"i{number}", 1.0))
    store.close()
    (world / "own.yaml").write_text(yaml.safe_dump({"rubrics": [{"text": "The answer is short.", "weight": 1.0}]}))
    judge = ("task_judge.judge_protocol=rubrics", "task_judge.params.file=own.yaml", "flywheel.rubrics=true")
    with answering(careful_model) as server:
        wheel, lines = flywheel(world / "wheel.yaml", *REINFORCED, *judge, f"helper_model.base_url={server.url}")
        assert wheel.turn().decision is not None
    assert "  none: all labels are equal; training uses those of the judge" in lines


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("flywheel.expand=5",), "flywheel.expand: flywheel.learn_by: sft"),
        (("flywheel.rubrics=true", "flywheel.learn_by=reinforcement"), "task_judge.judge_protocol is ''"),
    ],
)
def test_what_training_would_not_use_is_refused(world: Path, overrides: tuple[str, ...], named: str) -> None:
    wheel, _ = flywheel(world / "wheel.yaml", *overrides)
    with pytest.raises(ConfigError, match=named):
        wheel.turn()
    assert not Turns(world / "flywheel").all()
