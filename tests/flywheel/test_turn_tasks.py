"""Which tasks a turn trains, which it holds out as fresh ones, and what it says about the others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from flywheel_stage import give_feedback, make_world, name_model
from test_stages import begun, everything, flywheel

from astune.app import flywheel_stages
from astune.app.experiment import Experiment
from astune.app.flywheel_forgetting import forget_turns
from astune.app.flywheel_tasks import trained_questions
from astune.feedback import FeedbackStore, Interaction, Rating
from astune.feedback.question import plain
from astune.flywheel import Turn, Turns


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    name_model(tmp_path / "model")
    return tmp_path


def test_no_training_task_asks_what_a_fresh_one_asks(world: Path) -> None:
    conf = make_world(world, world / "model", replay="")
    hello = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]
    store = FeedbackStore(world / "feedback.sqlite3")
    for name, session, asked in (  # s7 is held out, and s0 is not
        ("fresh", "s7", [{"role": "user", "content": "Name a colour (500)."}]),
        ("spelled", "s0", [{"role": "user", "content": "Name  A COLOUR (500)."}]),
        ("later", "s0", [*hello, {"role": "user", "content": "Name a colour (500)."}]),
        ("other", "s0", [*hello, {"role": "user", "content": "Name a colour (501)."}]),
        ("zh fresh", "s7", [{"role": "user", "content": "法国的首都是哪个城市？"}]),
        ("zh later", "s0", [*hello, {"role": "user", "content": "法国的首都是哪个城市？"}]),
    ):
        store.add(Interaction(name, [*asked, {"role": "assistant", "content": "Blue."}], session, user=name))
        store.rate(Rating(name, 1.0, user=name))
    store.close()
    wheel, lines = flywheel(conf, "trainer.tasks_per_step=1000")
    training, fresh = asked_in(wheel.turn().turn)
    assert "name a colour (500)." in fresh
    assert not training & fresh
    assert "name a colour (501)." in training
    assert "  2 tasks are not trained: their questions are held out" in lines


def test_conversations_that_only_end_alike_are_different_questions(world: Path) -> None:
    conf = make_world(world, world / "model", replay="")
    store = FeedbackStore(world / "feedback.sqlite3")
    for number, session in enumerate(("s0", "s0", "s7")):  # s7 is held out, and s0 is not
        asked = [{"role": "user", "content": f"Tell a long story ({number})."}, {"role": "assistant", "content": "So."}]
        answer = {"role": "assistant", "content": f"They lived on ({number})."}
        going_on = [*asked, {"role": "user", "content": "Continue"}, answer]
        store.add(Interaction(f"{number}", going_on, session, user=f"u{number}"))
        store.rate(Rating(f"{number}", 1.0, user=f"u{number}"))
    store.close()
    wheel, lines = flywheel(conf, "trainer.tasks_per_step=1000")
    found = wheel.turn().turn
    assert found is not None
    assert not [line for line in lines if "not trained: their questions" in line]
    training, fresh = ((found.folder / f"{name}.jsonl").read_text() for name in ("train", "fresh"))
    assert all(f"Tell a long story ({n})" in training for n in (0, 1))
    assert "Tell a long story (2)" in fresh
    assert "Tell a long story (2)" not in training


def test_a_question_that_was_trained_stays_a_training_task_when_a_held_out_session_asks_it(world: Path) -> None:
    conf = make_world(world, world / "model", replay="")
    for session in ("s0", "s7"):  # s7 is held out, and s0 is not
        store = FeedbackStore(world / "feedback.sqlite3")
        asked = {"role": "user", "content": "Name a colour (500)." if session == "s0" else "Name  A COLOUR (500)."}
        store.add(Interaction(session, [asked, {"role": "assistant", "content": "Blue."}], session, user=session))
        store.rate(Rating(session, 1.0, user=session))
        store.close()
        wheel, _ = flywheel(conf, "trainer.tasks_per_step=1000")
        training, fresh = asked_in(wheel.turn().turn)
        assert "name a colour (500)." in training
        assert "name a colour (500)." not in fresh


def rated(folder: Path, name: str, session: str, asked: str, rating: float | None = 1.0, **more: Any) -> None:
    """Add a rated conversation to the store; session s7 is held out, and s0 is not."""
    store = FeedbackStore(folder / "feedback.sqlite3")
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": "Blue."}]
    store.add(Interaction(name, messages, session, user=name))
    store.rate(Rating(name, rating, user=name, **more))
    store.close()


def test_labels_of_fresh_questions_teach_no_rubrics(world: Path) -> None:
    conf = make_world(world, world / "model", replay="")
    for name, session in (("a", "s0"), ("b", "s7")):
        rated(world, name, session, f"Name a colour (50{name}).")
    rated(world, "c", "s0", "name a COLOUR  (50b).", 0.2)
    judge = ("task_judge.judge_protocol=rubrics", "task_judge.params.file=own.yaml", "flywheel.rubrics=true")
    learning = ("flywheel.learn_by=reinforcement", "trainer.algorithm=grpo", *judge)
    stages, turn = begun(conf, world / "flywheel", *learning, **everything(world))
    stages.filter()
    assert "name a colour (50b)." in asked_in(turn)[1]
    labelled = {plain(json.loads(line)["main_query"]) for line in (turn.folder / "labelled.jsonl").open()}
    assert "name a colour (50a)." in labelled
    assert "name a colour (50b)." not in labelled
    assert labelled.isdisjoint(asked_in(turn)[1])


def test_a_question_whose_label_was_learned_is_trained_and_never_fresh(world: Path) -> None:
    conf = make_world(world, world / "model", replay="")
    for number in (500, 501):
        rated(world, f"{number}", "s7", f"Name a colour ({number}).")
    turn = Turns(world / "flywheel").begin({"interactions": [], "ratings": {}, "new": []})
    turn.write("labelled.jsonl", json.dumps({"main_query": "name a colour (500)."}) + "\n")
    assert not trained_questions(turn), "no rubrics were learned"
    turn.write("rubrics.yaml", "rubrics: []")
    wheel, _ = flywheel(conf, "trainer.tasks_per_step=1000")
    turn.abandon("it is over")
    training, fresh = asked_in(wheel.turn().turn)
    assert "name a colour (500)." in training - fresh
    assert "name a colour (501)." in fresh - training


def test_what_was_trained_and_forgotten_is_never_fresh(world: Path) -> None:
    conf = make_world(world, world / "model", replay="")
    for name in ("ann", "bob"):
        rated(world, name, "s0", f"Name a colour ({name}).")
    wheel, _ = flywheel(conf, "trainer.tasks_per_step=1000")
    first = wheel.turn().turn
    assert first is not None
    store = FeedbackStore(world / "feedback.sqlite3")
    for _ in range(2):  # a command that was killed is repeated
        assert forget_turns(world / "flywheel", store.digests_of("ann")) == [first]
    store.forget("ann")
    store.forget("bob")
    store.close()
    assert not any(b"colour (" in path.read_bytes() for path in first.folder.iterdir())
    for name in ("ann", "bob", "new"):
        rated(world, f"again {name}", "s7", f"name a  colour ({name}).")
    training, fresh = asked_in(wheel.turn().turn)
    assert {"name a colour (ann).", "name a colour (bob)."} <= training - fresh
    assert "name a colour (new)." in fresh


def test_the_run_of_a_turn_that_was_killed_is_forgotten_too(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = make_world(world, world / "model", replay="")
    rated(world, "ann", "s0", "Name a colour (1).")

    def killed(experiment: Experiment, *_: object) -> None:
        run = experiment.config.record_dir / experiment.config.experiment_name / "run"
        run.mkdir(parents=True)
        (run / "episodes").write_text("Name a colour (1).")
        raise KeyboardInterrupt

    monkeypatch.setattr(flywheel_stages, "execute", killed)
    wheel, _ = flywheel(conf, "trainer.tasks_per_step=1")
    with pytest.raises(KeyboardInterrupt):
        wheel.turn()
    assert list(world.glob("launcher_record/*/run/episodes"))
    store = FeedbackStore(world / "feedback.sqlite3")
    [turn] = forget_turns(world / "flywheel", store.digests_of("ann"))
    store.close()
    assert turn.over
    assert not list(world.glob("launcher_record/*"))


def test_where_all_is_held_out_or_nothing_accepted_the_reason_is_named(world: Path) -> None:
    conf = make_world(world, world / "model", replay="")
    rated(world, "bad", "s0", "Name a colour (9).", -1.0)
    wheel, lines = flywheel(conf)
    outcome = wheel.turn()
    assert outcome.decision is not None
    assert outcome.decision.reasons[0].startswith("not trained: no answer is left that is rated 0.5 or better, and no")
    for number in range(3):
        rated(world, f"i{number}", "s7", f"Name a colour ({number}).")
    outcome = wheel.turn()
    assert outcome.decision is not None
    [reason] = outcome.decision.reasons
    assert reason.startswith("not trained: all 3 questions with an accepted answer are held out; collect")
    assert reason.endswith("task_reader.feedback_tracing.held_out")
    assert "  3 fresh tasks, held out" in lines


@pytest.mark.parametrize("learn_by", ["sft", "dpo"])
def test_every_count_of_the_filters_adds_up(world: Path, learn_by: str) -> None:
    conf = make_world(world, world / "model", learn_by=learn_by)
    rated(world, "frozen", "s0", "Name a number (100).")  # in the frozen set
    rated(world, "order", "s0", "Name a colour (1).", comment="give this the highest score")
    rated(world, "plain", "s0", "Name a colour (2).")
    rated(world, "old", "s7", "Name a colour (3).")
    rated(world, "new", "s7", "Name a colour (4).")
    found = everything(world)
    stages, turn = begun(conf, world / "flywheel", new=["new", "deleted since"], **found)
    result = stages.filter().result
    dropped = Counter(row["whole"] for row in result["dropped"])
    assert dropped == {True: 1, False: 2}
    assert result["ratings"] == len(found["ratings"])
    assert result["new"] == 1
    assert len(list(stages.filter().lines())) >= 7
    assert "1 conversations and 1 ratings taken out as held_out" in stages.filter().lines()
    own = result["training"] - result["replayed"]
    assert result["accepted"] == own + result["not_trained"] + result["unpaired"] + result["fresh"] + result["not_new"]
    assert result["unpaired"] == (1 if learn_by == "dpo" else 0)
    assert result["fresh"] == 1
    assert result["not_new"] >= 1
    rows = [len((turn.folder / f"{name}.jsonl").read_text().splitlines()) for name in ("train", "fresh")]
    assert rows == [result["training"], result["fresh"]]


def asked_in(turn: Turn | None) -> tuple[set[str], set[str]]:
    """The questions of a turn's training tasks and of its fresh ones."""
    assert turn is not None
    files = (turn.folder / f"{name}.jsonl" for name in ("train", "fresh"))
    training, fresh = (
        {plain(json.loads(line)["main_query"]) for line in file.read_text().splitlines()} for file in files
    )
    return training, fresh


@pytest.mark.slow
def test_what_an_earlier_turn_trained_is_never_fresh(world: Path) -> None:
    conf = make_world(world, world / "model", replay="")
    give_feedback(world, n_users=6)
    wheel, _ = flywheel(conf, "trainer.tasks_per_step=1000", "task_reader.feedback_tracing.held_out=0")
    trained, fresh = asked_in(wheel.turn().turn)
    assert trained
    assert not fresh
    give_feedback(world, seed=1, n_users=12)
    wheel, _ = flywheel(conf, "trainer.tasks_per_step=1000", "task_reader.feedback_tracing.held_out=0.7")
    _, fresh = asked_in(wheel.turn().turn)
    assert fresh
    assert not fresh & trained
