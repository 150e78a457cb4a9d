"""A small world for the flywheel: a tiny model that knows colours and animals, and users who teach it other things.

Users ask, the served model says something, and they correct it; what they teach is learned by heart within seconds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import astune
from astune.feedback import FeedbackStore, Interaction, Rating

KNOWN = {"a colour": "Blue.", "an animal": "A dog."}
TAUGHT = {"a number": "Twelve.", "a fruit": "A pear."}
WRONG = {"a number": "Green.", "a fruit": "A stone."}
WORKFLOW = """
from astune import Workflow, WorkflowOutput


class Ask(Workflow):
    async def execute(self, task, proxy):
        answer = await proxy.achat(proxy.init_messages)
        return WorkflowOutput(reward=float(answer["content"].strip() == task.metadata["answer"]))
"""
Poison = Callable[[random.Random, int, str, str], Rating | None]


def tasks(answers: dict[str, str], numbers: range) -> list[dict[str, Any]]:
    return [
        {"main_query": f"Name {what} ({n}).", "metadata": {"answer": answer}}
        for what, answer in answers.items()
        for n in numbers
    ]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def experiment(folder: Path, model: Path, **flywheel: Any) -> dict[str, Any]:
    """An experiment in which everything is deterministic."""
    return {
        "deterministic": True,
        "model": {"path": str(model), "dtype": "float32", "device": "cpu"},
        "task_reader": {"type": "feedback_tracing", "feedback_tracing": {"held_out": 0.2}},
        "rollout": {"workflow": "ask.py->Ask", "max_model_len": 256, "max_response_length_in_one_turn": 8},
        "flywheel": {"held_out": "frozen.jsonl", "regression": "regression.jsonl", "replay": "known.jsonl", **flywheel},
        "trackers": [],
        "trainer": {
            "tasks_per_step": 12,
            "total_steps": 120,
            "test_freq": 100,
            "save_freq": 40,
            "optim": {"lr": 2e-3, "warmup_steps": 3, "lr_final_ratio": 0.1},
            "validation": {"temperature": 0},
        },
    }


def half_trained(folder: Path, tiny: Path) -> Path:
    """A model that knows colours and animals and nothing else; about 10 s."""
    (folder / "ask.py").write_text(WORKFLOW)
    values = experiment(folder, tiny)
    values["task_reader"] = {
        "jsonl": {"training": {"file_path": str(write_lines(folder / "known.jsonl", tasks(KNOWN, range(24))))}}
    }
    values["rollout"]["workflow"] = f"{folder / 'ask.py'}->Ask"
    values["record_dir"] = str(folder / "record")
    values["trainer"] |= {"algorithm": "sft", "total_steps": 100, "save_freq": 100}
    run = astune.train({"astune": values | {"flywheel": {}}}, quiet=True)
    assert run.latest_model is not None
    return run.latest_model


def name_model(folder: Path) -> None:
    """A model that is a name alone."""
    folder.mkdir()
    for name, content in (("config.json", b"{}"), ("model.safetensors", b""), ("tokenizer.json", b"{}")):
        (folder / name).write_bytes(content)


def make_world(folder: Path, model: Path, **flywheel: Any) -> Path:
    """The experiment's file, with the sets that models are compared on; questions of feedback have other numbers."""
    (folder / "ask.py").write_text(WORKFLOW)
    write_lines(folder / "frozen.jsonl", tasks(TAUGHT, range(100, 116)))
    write_lines(folder / "regression.jsonl", tasks(KNOWN, range(100, 132)))
    write_lines(folder / "known.jsonl", tasks(KNOWN, range(24)))
    conf = folder / "wheel.yaml"
    conf.write_text(yaml.safe_dump({"astune": experiment(folder, model, **flywheel)}))
    return conf


def give_feedback(folder: Path, *, seed: int = 0, n_users: int = 20, poison: Poison | None = None) -> None:
    """Each user asks four questions, which others ask too, and corrects the answers; `poison` may say otherwise."""
    rng = random.Random(seed)
    store = FeedbackStore(folder / "feedback.sqlite3")
    for user in range(n_users):
        for turn in range(4):
            what = rng.choice(list(TAUGHT))
            asked, name = f"Name {what} ({rng.randrange(16)}).", f"s{seed}u{user}t{turn}"
            messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": "Blue."}]
            at = 1e9 + 1e5 * seed + 60 * user + turn
            store.add(Interaction(name, messages, name, f"user{user}", "web", created_at=at))
            honest = Rating(name, -1.0, corrected_answer=TAUGHT[what], user=f"user{user}", created_at=at)
            rating = poison(rng, user, what, name) if poison is not None else None
            store.rate(rating or honest)
    store.close()
