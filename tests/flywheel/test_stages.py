"""Single stages and what is refused before them, without a model: what is replayed, measured and kept."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flywheel_stage import KNOWN, TAUGHT, give_feedback, make_world, name_model, tasks, write_lines

from astune.app import flywheel_stages
from astune.app.console import Console
from astune.app.evaluation import Evaluation
from astune.app.experiment import Experiment
from astune.app.flywheel import Flywheel
from astune.app.flywheel_inputs import Inputs
from astune.app.flywheel_making import task_line
from astune.app.flywheel_stages import Stages
from astune.feedback import FeedbackStore, Interaction, Masker, Rating
from astune.flywheel import History, Turn, Turns
from astune.schema import ConfigError, Forest, Task, WorkflowError


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A world whose model is a name alone."""
    monkeypatch.chdir(tmp_path)
    name_model(tmp_path / "model")
    give_feedback(tmp_path, n_users=6)
    return tmp_path


def flywheel(conf: Path, *overrides: str) -> tuple[Flywheel, list[str]]:
    lines: list[str] = []
    return Flywheel(conf, overrides, Console(file=io.StringIO()), lines.append), lines


def begun(conf: Path, folder: Path, *overrides: str, **inputs: Any) -> tuple[Stages, Turn]:
    experiment = Experiment.of(conf, overrides)
    given = {"interactions": [], "ratings": {}, "new": [], "model": "old", "weights": "1", "settings": "", **inputs}
    turn = Turns(folder).begin(given)
    return Stages(experiment, turn, folder, Console(file=io.StringIO()), Inputs.of(experiment)), turn


def everything(folder: Path) -> dict[str, Any]:
    """The inputs of a turn with all feedback of the store."""
    store = FeedbackStore(folder / "feedback.sqlite3")
    interactions, ratings = store.digests()
    store.close()
    return {"interactions": [*interactions], "ratings": dict.fromkeys(ratings, 1)}


def measured(asked: Sequence[Task], share: float) -> Evaluation:
    done = asked[: round(share * len(asked))]
    of = [SimpleNamespace(task=task, reward=SimpleNamespace(is_success=True), forest=Forest()) for task in done]
    dropped = Counter({"the judge is down": len(asked) - len(done)})
    return Evaluation("a model", of, len(done), dropped)  # type: ignore[arg-type]


def test_questions_that_models_are_compared_on_are_not_replayed_and_are_counted(world: Path) -> None:
    conf = make_world(world, world / "model", replay_share=0.9)
    original = tasks(KNOWN, range(98, 102))  # two of four numbers stand in the regression set
    original[0] = {"messages": [{"role": "user", "content": "Name A colour (100)."}, *_answered("Blue.", "And now?")]}
    story = [{"role": "user", "content": "Tell a long story."}, {"role": "assistant", "content": "So."}]
    original.append({"init_messages": [*story, {"role": "user", "content": "Continue"}]})
    write_lines(world / "known.jsonl", original)
    write_lines(world / "frozen.jsonl", [original[-1], *tasks(TAUGHT, range(100, 116))])
    wheel, lines = flywheel(conf)
    wheel.dry_run()
    assert "6 original tasks are not replayed: models are compared on them" in lines
    assert any(line.endswith(", 3 of them replayed") for line in lines)


def test_original_tasks_are_their_share_of_all_that_is_trained(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def expanded(_: Experiment, turn: Turn, excluded: Collection[str]) -> dict[str, Any]:
        lines = [task_line(Task(task_id=f"made-{n}", main_query=f"Name a fruit (made {n}).")) for n in range(18)]
        turn.write("expanded.jsonl", "".join(lines))
        return {"seeds": 1, "tasks": len(lines), "why": ""}

    monkeypatch.setattr(flywheel_stages, "expanded", expanded)
    conf = make_world(world, world / "model", replay_share=0.5)
    conf.write_text(conf.read_text().replace("tasks_per_step: 12", "tasks_per_step: 1000"))
    stages, _ = begun(conf, world / "flywheel", model=str(world / "model"), **everything(world))
    found = stages.filter().result
    assert 2 * found["replayed"] == found["training"]
    assert stages.expand()["replayed"] == 18
    training = stages._new_run().config.task_reader.jsonl.training
    assert training is not None
    rows = [json.loads(line) for line in Path(training.file_path).read_text().splitlines()]
    original = [row["main_query"] for row in rows if "feedback" not in row["task_id"] and "made" not in row["task_id"]]
    assert len(rows) == found["training"] + 36
    assert len(original) == len(set(original)) == len(rows) / 2
    assert stages.train()["why"].startswith(f"not trained: {len(rows)} tasks, ")


def _answered(*said: str) -> list[dict[str, str]]:
    roles = ("assistant", "user", "assistant")
    return [{"role": role, "content": text} for role, text in zip(roles, (*said, "Blue."), strict=True)]


def test_pairs_are_replayed_where_pairs_are_learned_from(world: Path) -> None:
    conf = make_world(world, world / "model", replay_share=0.9, learn_by="dpo")
    original = tasks(KNOWN, range(4))
    original[0]["metadata"]["rejected"] = "Twelve."
    original[1] = {"prompt": "Name a colour (1).", "chosen": "Blue.", "rejected": "A dog."}
    original[2]["metadata"]["rejected"] = original[2]["metadata"]["answer"]
    write_lines(world / "known.jsonl", original)
    wheel, lines = flywheel(conf)
    wheel.dry_run()
    assert "6 original tasks are not replayed: they have no two answers to prefer one of" in lines
    assert any(line.endswith(", 2 of them replayed") for line in lines)


def test_what_could_hardly_be_measured_is_not_kept_and_is_measured_again(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share, calls = [0.9], list[str]()

    def measure(experiment: Experiment, *_: object, tasks: Sequence[Task]) -> Evaluation:
        calls.append(experiment.config.model.path)
        return measured(tasks, share[0])

    monkeypatch.setattr(flywheel_stages, "measure", measure)
    conf = make_world(world, world / "model")
    stages, turn = begun(conf, world / "flywheel")
    stages.filter()
    turn.write("trained.json", json.dumps({"model": "new", "weights": "2"}))
    with pytest.raises(
        WorkflowError, match=r"frozen, old model: only 29 of 32 tasks could be .* 3 times: the judge is"
    ):
        stages.decide(lambda _: None)
    assert not turn.has("decision")
    assert not list((world / "flywheel").glob("evaluations/*"))
    share[0] = 0.97
    assert not stages.decide(lambda _: None).promoted
    assert calls == ["old", "old", "new", "old", "new"]
    assert len(stages.tried()) > 60
    assert len(calls) == 5, "it is measured once a turn"

    stages, turn = begun(conf, world / "flywheel", new=["more"])
    stages.filter()
    turn.write("trained.json", json.dumps({"model": "new", "weights": "2"}))
    stages.decide(lambda _: None)
    assert len(calls) == 9, "in another turn the agent and the judge may be others"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("engine.base_url=http://127.0.0.1:1", "engine.base_url"),
        ("models={solver: {train: true, lora: {rank: 4}}}", "models.solver"),
    ],
)
@pytest.mark.parametrize("begin", [Flywheel.turn, Flywheel.dry_run])
def test_what_a_turn_cannot_train_and_measure_is_refused_at_the_start(
    world: Path, override: str, named: str, begin: Callable[[Flywheel], object]
) -> None:
    wheel, _ = flywheel(make_world(world, world / "model"), override, "engine.type=vllm")
    with pytest.raises(ConfigError, match=named):
        begin(wheel)
    assert not (world / "flywheel").exists()


def test_a_turn_whose_model_was_overwritten_is_abandoned(world: Path) -> None:
    conf = make_world(world, world / "model", replay="")
    wheel, lines = flywheel(conf, "trainer.tasks_per_step=1000")
    wheel.turn()
    turns = Turns(world / "flywheel")
    [first] = turns.all()
    turns.begin(first.inputs)
    (world / "model" / "model.safetensors").write_bytes(b"other weights")
    wheel.turn()
    assert any("is abandoned: the weights in" in line for line in lines)


def test_a_users_own_masks_reach_what_a_turn_imports(world: Path) -> None:
    conf = make_world(world, world / "model", replay="", imports=["traces.json"])
    store = FeedbackStore(world / "feedback.sqlite3", Masker({"order": r"#\d{6}"}))
    store.close()
    asked = [{"role": "user", "content": "Where is #123456?"}]
    record = {"traceId": "a", "type": "GENERATION", "input": asked, "output": "Here."}
    (world / "traces.json").write_text(json.dumps([record]))
    wheel, _ = flywheel(conf, "trainer.tasks_per_step=1000")
    wheel.turn()
    store = FeedbackStore(world / "feedback.sqlite3")
    said = [each.messages[0]["content"] for each in store.interactions()]
    store.close()
    assert "Where is [order]?" in said


def test_what_a_store_was_told_not_to_mask_is_not_masked_in_a_turn(world: Path) -> None:
    conf = make_world(world, world / "model", replay="")
    store = FeedbackStore(world / "feedback.sqlite3", Masker({"phone": ""}))
    messages = [{"role": "user", "content": "Dial 555 123 4567"}, {"role": "assistant", "content": "No."}]
    store.add(Interaction("p", messages, session="p", user="u"))
    store.rate(Rating("p", -1.0, corrected_answer="It is 555 123 4567", user="u"))
    store.close()
    wheel, _ = flywheel(conf, "trainer.tasks_per_step=1000")
    wheel.turn()
    tasks = "".join(path.read_text() for name in ("train", "fresh") for path in world.rglob(f"{name}.jsonl"))
    assert "Dial 555 123 4567" in tasks
    assert "It is 555 123 4567" in tasks


def test_a_rollback_needs_no_sets(world: Path) -> None:
    conf = make_world(world, world / "model")
    for name in ("better", "flywheel"):
        (world / name).mkdir()
    History(world / "flywheel", str(world / "model")).promote("0001-00000000", world / "better", [])
    for name in ("frozen", "regression", "known"):
        (world / f"{name}.jsonl").unlink()
    wheel, _ = flywheel(conf)
    assert wheel.roll_back().model == str(world / "model")
    assert (world / "flywheel" / "promoted").resolve() == world / "model"
