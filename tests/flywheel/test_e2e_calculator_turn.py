"""`make e2e-flywheel`: a real agent that is half trained serves 200 users, and a turn learns from what they say.

The small real model answers through AgentScope with its own tracing. Users know the truth: some rate, some correct,
some ask again in other words. A search for prompts has the same feedback, and tries prompts that a person wrote.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle, takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml
from answering import answering
from astune_command import ROOT, astune, start
from solver import BEFORE, SYSTEM
from tracing import collecting

from astune import evaluate
from astune.flywheel import Decision
from astune.runs.interval import wilson_interval
from tutorial.example_calculator.tasks import Split, make_tasks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(7200)]

SEEDS = range(int(os.environ.get("FLYWHEEL_SEEDS", "3")))
N_USERS, ASKED_BY_EACH = 200, 2
RATE, CORRECT, ASK_AGAIN = 0.6, 0.7, 0.5
"""Parts of the users that rate, of the wrong answers that these correct, and of the other wrong ones asked again."""
HALF_S = 3000.0
"""Seconds that half a training may take."""


@dataclass(frozen=True)
class Said:
    """What a user asked, what is right, and what the agent answered."""

    user: str
    session: str
    question: str
    truth: str
    read: str | None
    trace_id: str


def rows(split: Split, number: int, seed: int) -> list[dict[str, Any]]:
    """Tasks as the agent meets them: the messages that stand before every question, and the question."""
    return [
        {
            "task_id": task.task_id,
            "init_messages": [*BEFORE, {"role": "user", "content": task.main_query}],
            "metadata": {"answer": task.metadata["answer"]},
        }
        for task in make_tasks(split, number, seed=seed)
    ]


def write_rows(path: Path, of: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in of))
    return path.name


def experiment(**more: Any) -> dict[str, Any]:
    trainer = {
        "tasks_per_step": 8,
        "total_steps": 20,
        "save_freq": 20,
        "test_freq": 2,
        "tokens_per_microbatch": 1024,
        "optim": {"lr": 5e-5, "warmup_steps": 3},
        "validation": {"temperature": 0},
    }
    return {
        "model": {"path": "builtin:smollm2-135m"},
        "rollout": {
            "workflow": "solver.py->Solver",
            "params": {"system_prompt": SYSTEM},
            "num_repeat": 8,
            "max_model_len": 384,
            "max_response_length_in_one_turn": 24,
        },
        "trackers": [],
        **more,
        "trainer": trainer | more.get("trainer", {}),
    }


@pytest.fixture(scope="module")
def half(smol_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model, trained until it solves four in ten of the problems whose sentences it has not seen."""
    folder = tmp_path_factory.mktemp("half")
    shutil.copy(Path(__file__).with_name("solver.py"), folder)
    files = {
        "training": {"file_path": write_rows(folder / "train.jsonl", rows("train", 800, 0))},
        "validation": {"file_path": write_rows(folder / "validation.jsonl", rows("validation", 64, 0))},
    }
    stop = {"test_freq": 1, "validation": {"temperature": 0, "stop_at_success": 0.4}}
    conf = {"astune": experiment(task_reader={"jsonl": files}, trainer=stop)}
    (folder / "half.yaml").write_text(yaml.safe_dump(conf))
    begun = time.monotonic()
    astune(folder, "--conf", "half.yaml", timeout_s=HALF_S)
    tell(f"\nhalf trained in {time.monotonic() - begun:.0f} s")
    astune(folder, "export", "launcher_record/half", "--to", "model")
    return folder / "model"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_turn_of_a_real_agent_is_promoted(half: Path, tmp_path: Path, seed: int) -> None:
    shutil.copy(Path(__file__).with_name("solver.py"), tmp_path)
    said = served(half, tmp_path, seed)
    right = [each.read == each.truth for each in said]
    ratings = rated(said, seed)
    tell(f"seed {seed}: users asked {len(said)}, {share(right)} right; {len(ratings)} ratings")
    settings = {
        "imports": ["traces.json", "ratings.csv"],
        "learn_by": "reinforcement",
        "held_out": write_rows(tmp_path / "frozen.jsonl", rows("validation", 200, 1000 + seed)),
        "regression": write_rows(tmp_path / "regression.jsonl", rows("train", 200, 2000 + seed)),
        "replay": write_rows(tmp_path / "original.jsonl", rows("train", 200, 0)),
    }
    reader = {"type": "feedback_tracing", "feedback_tracing": {"path": "feedback.sqlite3", "held_out": 0.2}}
    conf = experiment(seed=seed, task_reader=reader, flywheel=settings, trainer={"test_freq": 100, "total_steps": 16})
    conf["model"] = {"path": str(half)}
    (tmp_path / "wheel.yaml").write_text(yaml.safe_dump({"astune": conf}))
    write_ratings(tmp_path / "ratings.csv", ratings)
    begun = time.monotonic()
    astune(tmp_path, "flywheel", "wheel.yaml", timeout_s=5000)
    took = time.monotonic() - begun
    [turn] = (tmp_path / "flywheel" / "turns").iterdir()
    decision = Decision.read(json.loads((turn / "decision.json").read_text()))
    for each in decision.comparisons:
        n = each.n_compared
        old, new = (f"{rate:.2f} {interval(rate, n)}" for rate in (each.old, each.new))
        tell(f"  {each.name:10} {old} -> {new} of {n}; {len(each.better)} better, {len(each.worse)} worse")
    tell(f"  {'promoted' if decision.promoted else 'not promoted'} in {took:.0f} s: {'; '.join(decision.reasons)}")
    prompted = best_prompt(tmp_path, half) if find_spec("gepa") else None
    if prompted is not None:
        tell(f"  best prompt of a search on the same feedback: frozen {prompted}")
    frozen, _, fresh = decision.comparisons
    assert frozen.new > frozen.old
    assert fresh.new > fresh.old
    assert decision.promoted


def served(model: Path, folder: Path, seed: int) -> list[Said]:
    """What 200 users asked of the served model, and asked again; their traces are in `traces.json`."""
    rng = random.Random(seed)
    problems = make_tasks("validation", N_USERS * ASKED_BY_EACH, seed=100 + seed)
    asked = [(f"user{n // ASKED_BY_EACH}", task.main_query, task.metadata["answer"]) for n, task in enumerate(problems)]
    with serving(model, folder) as environment, collecting() as collector:
        said = list(answered(folder, asked, collector.url, environment))
        wrong = [each for each in said if each.read != each.truth and rng.random() < ASK_AGAIN]
        again = [(each.user, f"Tell me: {each.question}", each.truth) for each in wrong]
        said += answered(folder, again, collector.url, environment)
        collector.write(folder / "traces.json")
    return said


@contextmanager
def serving(model: Path, folder: Path) -> Iterator[dict[str, str]]:
    """`astune serve MODEL` in a folder of its own, so that the only record of what is said are the traces."""
    own = folder / "server"
    own.mkdir()
    limits = ("rollout.max_response_length_in_one_turn=24", "rollout.max_model_len=384", "rollout.temperature=0")
    words = [word for key in limits for word in ("--set", key)]
    server = start(own, "serve", str(model), "--port", "0", "--client", "web", *words, together=True)
    try:
        assert server.stdout is not None
        told = "".join(takewhile(lambda line: "curl" not in line, server.stdout))
        url = re.search(r"OPENAI_BASE_URL=(\S+)", told)
        key = re.search(r"^web: export OPENAI_API_KEY=(\S+)", told, re.MULTILINE)
        assert url, told
        assert key, told
        yield {"OPENAI_BASE_URL": url[1], "OPENAI_API_KEY": key[1]}
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)


def answered(
    folder: Path, asked: Sequence[tuple[str, str, str]], tracing_url: str, environment: dict[str, str]
) -> Iterator[Said]:
    """Have the agent answer (user, question, truth); all that a user asks is one session."""
    lines = [{"session": user, "question": question, "before": BEFORE} for user, question, _ in asked]
    name = write_rows(folder / "questions.jsonl", lines)
    agent = Path(__file__).with_name("traced_agent.py")
    paths = os.pathsep.join((str(ROOT), str(agent.parent)))
    done = subprocess.run(
        [sys.executable, str(agent), tracing_url, name],
        cwd=folder,
        env={**os.environ, **environment, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for (user, question, truth), line in zip(asked, done.stdout.splitlines(), strict=True):
        yield Said(user, user, question, truth, **json.loads(line))


def rated(said: Sequence[Said], seed: int) -> list[dict[str, str]]:
    """Six in ten users say what they think: of a right answer, of a wrong one, and mostly what would be right."""
    rng = random.Random(seed)
    who = {user for user in sorted({each.user for each in said}) if rng.random() < RATE}
    ratings = []
    for number, each in enumerate(said):
        if each.user not in who:
            continue
        right = each.read == each.truth
        ratings.append(
            {
                "trace_id": each.trace_id,
                "user": each.user,
                "rating": "1" if right else "-1",
                "corrected_answer": each.truth if not right and rng.random() < CORRECT else "",
                "created_at": str(1e9 + 100 * number),
            }
        )
    return ratings


def write_ratings(path: Path, ratings: Sequence[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ratings[0]))
        writer.writeheader()
        writer.writerows(ratings)


WRITTEN = (
    "Decide whether amounts are put together or one is taken away. Then write <calc>a+b</calc> or <calc>a-b</calc>.",
    "Answer with one calculation of the two numbers in the question, such as <calc>12+34</calc>, and nothing else.",
    "Write only <calc>...</calc>. Use + for in all, together and altogether, and - for left, remain and still.",
    "You are careful with word problems. Read the question twice, then write its calculation as <calc>...</calc>.",
    "Copy both numbers, put + or - between them, and write the result as <calc>...</calc>.",
    "Write the calculation as <calc>...</calc>, with + where something is added and - where something goes away.",
)
"""Prompts that a person wrote, which the search proposes one after another: no model here can reflect."""


def best_prompt(folder: Path, model: Path) -> str:
    """Success on the frozen set with the best prompt that a search finds on the same feedback."""
    proposals = cycle(WRITTEN)
    with answering(lambda instruction, question: f"```\n{next(proposals)}\n```") as server:
        keys = (f"helper_model.base_url={server.url}", "prompt_search.max_episodes=300", "experiment_name=searched")
        words = [word for key in (*keys, "helper_model.cache=false") for word in ("--set", key)]
        astune(folder, "optimize-prompt", "wheel.yaml", *words, timeout_s=3000)
    [run] = (folder / "launcher_record" / "searched").iterdir()
    best = yaml.safe_load((run / "best_prompts.yaml").read_text())["astune"]["rollout"]["params"]["system_prompt"]
    conf = yaml.safe_load((folder / "wheel.yaml").read_text())
    files = {
        split: {"file_path": f"{name}.jsonl"} for split, name in (("training", "original"), ("validation", "frozen"))
    }
    conf["astune"]["task_reader"] = {"jsonl": files}
    conf["astune"]["rollout"]["params"] = {"system_prompt": best}
    (folder / "prompted.yaml").write_text(yaml.safe_dump(conf))
    found = evaluate(folder / "prompted.yaml", model=str(model), quiet=True)
    low, high = found.interval
    return f"{found.success_rate:.2f} [{low:.2f}, {high:.2f}] ({best!r})"


def share(of: Sequence[bool]) -> str:
    return f"{sum(of) / len(of):.2f} {interval(sum(of) / len(of), len(of))}"


def interval(rate: float, n: int) -> str:
    low, high = wilson_interval(round(rate * n), n)
    return f"[{low:.2f}, {high:.2f}]"


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
