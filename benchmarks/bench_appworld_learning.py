"""Does the AppWorld tutorial's agent learn, on a small world: `make bench-appworld-learning`.

AppWorld's own engine and tests judge requests of three simple kinds, in a world that is made for it. The data of the
official tasks is not part of it, and the figures say nothing about them. The small real model does none of the
requests, so it is first fine-tuned on a few conversations in which scripts play the tutorial's agent, and then trained
by reinforcement learning on others. Held-out requests are of other people, about other things, in other wordings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from astune.config import import_class
from astune.engine.model_files import resolve_model
from astune.engine.scripted import ScriptedEngine
from astune.engine.tokenizer import ModelTokenizer
from astune.renderers import load_renderer
from astune.rollout import RolloutPool
from astune.rollout.demonstrations import WEIGHT
from astune.runs import RunDirectory
from astune.schema import Forest, Message, SamplingParams, Task
from astune.task_judge import load_judge
from astune.workflow import Workflow
from benchmarks.appworld_requests import KINDS, kind_of, solution, world
from benchmarks.bench_appworld import MAKE_WORLD, PYTHON, Server
from benchmarks.own_runs import astune, lines_of, resolved, step_seconds, train
from benchmarks.report import ROOT, describe, machine, markdown_table, success_rate, write_results

CONF = ROOT / "tutorial" / "example_appworld" / "appworld.yaml"
PEOPLE = {"shown": 32, "train": 40, "dev": 24}
"""Each has a request of each kind; those of `shown` are demonstrated, those of `dev` held out."""
AT_ONCE = 48
PLAY = (
    "model.lora.rank=16",
    "model.lora.alpha=32",
    "task_reader.type=jsonl",
    "task_reader.stratify_by=kind",
    f"rollout.max_env_worker={AT_ONCE}",
    "rollout.max_model_len=2048",
    "rollout.max_response_length_in_one_turn=160",
    "rollout.multi_turn.max_steps=1",
    f"trainer.validation.max_tasks={PEOPLE['dev'] * len(KINDS)}",
    "trainer.optim.lr_final_ratio=0.2",
    "trainer.optim.warmup_steps=2",
)
FINE_TUNING = (
    "trainer.tasks_per_step=8",
    "trainer.total_steps=24",
    "trainer.test_freq=24",
    "trainer.save_freq=24",
    "trainer.optim.lr=1.0e-3",
)
REINFORCEMENT = (
    "rollout.num_repeat=4",
    "trainer.tasks_per_step=12",
    "trainer.total_steps=40",
    "trainer.test_freq=10",
    "trainer.save_freq=40",
    "trainer.optim.lr=5.0e-4",
)


@contextmanager
def served(folder: Path, made: dict[str, Any]) -> Iterator[str]:
    """The URL of AppWorld's service with this world."""
    description = folder / "world.json"
    description.write_text(json.dumps(made))
    subprocess.run([PYTHON, MAKE_WORLD, folder, description], check=True, stdout=subprocess.DEVNULL)
    server = Server(folder, AT_ONCE)
    try:
        yield server.url
    finally:
        server.end()


def tasks_of(split: str, made: dict[str, Any], url: str) -> list[Task]:
    return [task_of(task_id, url) for task_id, task in made["tasks"].items() if task["split"] == split]


def task_of(task_id: str, url: str) -> Task:
    metadata = {"env_url": url, "kind": kind_of(task_id)}
    return Task(task_id, main_query=task_id, env_type="appworld", metadata=metadata)


async def demonstrated(made: dict[str, Any], url: str) -> list[Task]:
    """Tasks with conversations in which scripts play the tutorial's agent; AppWorld's tests have to pass."""
    config = resolved(CONF, PLAY)
    workflow = import_class(str(config.rollout.workflow), key="rollout.workflow", base=Workflow)
    model = resolve_model(config.model.path)
    tokenizer = ModelTokenizer.load(model)

    def script(_prompt: list[int], _params: SamplingParams, episode_id: str) -> list[int]:
        return tokenizer.encode(solution(episode_id.split("-")[2], made), add_special_tokens=False)

    pool = RolloutPool(ScriptedEngine(script), load_renderer(model), workflow, load_judge(config), config)
    tasks = tasks_of("shown", made, url)
    groups = await pool.run_groups(tasks, step=1, split="train", num_repeat=1, temperature=1.0)
    if failed := [group.task.task_id for group in groups if [each.raw_reward for each in group.episodes] != [1.0]]:
        raise SystemExit(f"the solutions of {', '.join(failed)} do not pass AppWorld's tests")
    return [
        replace(group.task, metadata={**group.task.metadata, "messages": messages_of(group.episodes[0].forest)})
        for group in groups
    ]


def messages_of(forest: Forest) -> list[Message]:
    """An episode's messages; what the agent was not asked for, as the example in its memory, is not trained."""
    [leaf] = forest.leaves()
    unread = {WEIGHT: 0}
    return [
        {"role": node.role, "content": node.content, **({} if node.sampled else unread)} for node in forest.path(leaf)
    ]


def fine_tune(files: tuple[str, ...], seed: int) -> RunDirectory:
    return train(CONF, "appworld_fine_tuned", (*PLAY, *FINE_TUNING, *files, f"seed={seed}"), command="sft")


def reinforce(start: RunDirectory, files: tuple[str, ...], model: Path, seed: int) -> RunDirectory:
    if astune("export", str(start.path), "--to", str(model)) != 0:
        raise SystemExit("the fine-tuned model cannot be exported")
    return train(CONF, "appworld_reinforced", (*PLAY, *REINFORCEMENT, *files, f"model.path={model}", f"seed={seed}"))


def write_tasks(folder: Path, training: list[Task], held_out: list[Task]) -> tuple[str, ...]:
    """Write the tasks as files; returns the settings that name them."""
    folder.mkdir()
    settings: list[str] = []
    for split, tasks in (("training", training), ("validation", held_out)):
        path = folder / f"{split}.jsonl"
        path.write_text("".join(json.dumps(asdict(task)) + "\n" for task in tasks))
        settings.append(f"task_reader.jsonl.{split}.file_path={path}")
    return tuple(settings)


def read_run(run: RunDirectory) -> dict[str, Any]:
    """What a finished run reached; `held_out` holds (requests done, requests) by step and kind."""
    done, asked = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    with run.episodes() as episodes:
        for episode in episodes.episodes():
            if episode.split == "validation" and episode.status != "error":  # one in error was played once more
                key = episode.step, kind_of(episode.task.task_id)
                asked[key] += 1
                done[key] += episode.status == "success"
    steps = lines_of(run, "train")
    return {
        "held_out": {
            str(step): {kind: (done[step, kind], asked[step, kind]) for kind in KINDS}
            for step in sorted({step for step, _ in asked})
        },
        "steps": len(steps),
        "episodes": round(sum(line.metrics["episodes/finished"] for line in steps)),
        "training_s": round(sum(step_seconds(line) for line in steps)),
    }


def table(data: dict[str, Any]) -> str:
    head = ("model", "held-out requests done", *KINDS, "steps", "episodes", "training, s")
    tuned, reinforced = data["fine-tuned"], data["reinforced"]
    rows = [
        ("untrained", *measurement(tuned, 0), "", "", ""),
        ("fine-tuned", *measurement(reinforced, 0), *effort(tuned)),
        ("after reinforcement learning", *measurement(reinforced, -1), *effort(reinforced)),
    ]
    return markdown_table(head, rows)


def measurement(found: dict[str, Any], at: int) -> list[str]:
    by_kind: dict[str, tuple[int, int]] = list(found["held_out"].values())[at]
    done, asked = zip(*by_kind.values(), strict=True)
    return [success_rate(sum(done), sum(asked)), *(f"{done} of {asked}" for done, asked in by_kind.values())]


def effort(found: dict[str, Any]) -> list[int]:
    return [found["steps"], found["episodes"], found["training_s"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the world and of both runs")
    parser.add_argument("--fine-tuned", type=Path, metavar="RUN", help="start from this run in place of fine-tuning")
    arguments = parser.parse_args()
    seed: int = arguments.seed
    if not PYTHON.is_file():
        raise SystemExit("there is no .venv-appworld; make it with: make appworld")
    made = world(PEOPLE, seed)
    data: dict[str, Any] = {"machine": machine(), "seed": seed}
    with tempfile.TemporaryDirectory(prefix="bench-appworld-learning-") as name:
        folder = Path(name)
        with served(folder, made) as url:
            held_out = tasks_of("dev", made, url)
            if arguments.fine_tuned is None:
                shown = asyncio.run(demonstrated(made, url))
                tuned = fine_tune(write_tasks(folder / "shown", shown, held_out), seed)
            else:
                tuned = RunDirectory.open(arguments.fine_tuned)
            trained = write_tasks(folder / "trained", tasks_of("train", made, url), held_out)
            reinforced = reinforce(tuned, trained, folder / "fine_tuned", seed)
    data |= {"fine-tuned": read_run(tuned), "reinforced": read_run(reinforced), "run": reinforced.path.name}
    facts = describe(data["machine"])
    write_results(
        "appworld_learning", data, f"# The AppWorld tutorial's agent on a small world\n\n{facts}\n\n{table(data)}"
    )
    print(f"\n{table(data)}\n\nrun {reinforced.path}")


if __name__ == "__main__":
    main()
