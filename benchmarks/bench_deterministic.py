"""`deterministic: true` beside `false`: seconds of rollouts and of the training step on them, and what differs.

Episodes of three turns share their first tokens; all of a batch run at once. Both ways play and train the same number
of tokens with the real small model, in turns within minutes of each other, and medians count. The difference is that
of the trainer's log-probabilities from the engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astune.config.schema import AstuneConfig, ModelConfig
from astune.engine import InProcessEngine
from astune.engine.model_files import resolve_model
from astune.schema import (
    Advantage,
    Episode,
    EpisodeGroup,
    Forest,
    MessageNode,
    Reward,
    SamplingParams,
    Task,
    TrainingBatch,
)
from astune.trainer.policy import PolicyTrainer
from benchmarks.report import describe, machine, markdown_table, write_results

SHARED, READ, SAMPLED, TURNS, REPEATS = 300, 40, 40, 3, 8
BAR = 1.5
"""Largest ratio of seconds, rollouts and training together."""


class Way:
    """Engine and trainer with and without `deterministic`."""

    def __init__(self, folder: Path, *, deterministic: bool) -> None:
        config = AstuneConfig(deterministic=deterministic, model=ModelConfig(device="cpu", dtype="bfloat16"))
        self.engine = InProcessEngine.load(
            folder,
            model=config.model,
            engine=config.engine,
            max_model_len=config.rollout.max_model_len,
            deterministic=deterministic,
        )
        self.trainer = PolicyTrainer.load(folder, config)

    async def step(self, number: int, seed: int) -> dict[str, float]:
        """Seconds of `number` episodes and of a step on them, and the largest difference."""
        started = time.perf_counter()
        episodes = await asyncio.gather(*(self._episode(each, seed) for each in range(number)))
        played = time.perf_counter()
        groups = [EpisodeGroup(each[0].task, list(each)) for each in _parts(episodes)]
        advantages: list[list[Advantage]] = [[(-1.0) ** one.repeat for one in group.episodes] for group in groups]
        report = await asyncio.to_thread(self.trainer.step, TrainingBatch(1, groups, advantages))
        trained = time.perf_counter()
        await self.trainer.publish(self.engine)
        found = {"rollout": played - started, "training": trained - played, "both": trained - started}
        return found | {name: report.metrics[f"logprob_diff_{name}"] for name in ("mean", "max")}

    async def _episode(self, number: int, seed: int) -> Episode:
        task, repeat = divmod(number, REPEATS)
        session, nodes, prompt = f"{seed}-{number}", list[MessageNode](), list[int]()
        self.engine.open_session(session)
        for turn in range(TURNS):
            read = [*range(1000, 1000 + SHARED)] if turn == 0 else []
            read += [2000 + (task * 97 + turn * 31 + each) % 20000 for each in range(READ)]
            prompt += read
            params = SamplingParams(max_tokens=SAMPLED, temperature=1.0, seed=seed * 1000 + number * TURNS + turn)
            answer = await self.engine.generate(prompt, params, session=session)
            prompt += answer.token_ids
            at = len(nodes)
            nodes += [
                MessageNode(at, at - 1 if at else None, "user", "", read, "agent"),
                MessageNode(
                    at + 1,
                    at,
                    "assistant",
                    "",
                    answer.token_ids,
                    "agent",
                    logprobs=answer.logprobs,
                    trainable=True,
                    finish_reason="stop",
                    weights_version=answer.weights_version,
                ),
            ]
        self.engine.close_session(session)
        reward = Reward(raw_reward=float(repeat % 2), is_success=bool(repeat % 2))
        about = {"split": "train", "step": 1, "attempt": 1, "seed": seed, "status": "success", "reward": reward}
        return Episode(
            episode_id=session, task=Task(f"task-{task}", main_query="?"), repeat=repeat, forest=Forest(nodes), **about
        )


def _parts(episodes: Sequence[Episode]) -> list[Sequence[Episode]]:
    return [episodes[first : first + REPEATS] for first in range(0, len(episodes), REPEATS)]


async def measure(numbers: Sequence[int], repetitions: int) -> list[dict[str, Any]]:
    folder = resolve_model("builtin:smollm2-135m")
    ways = {deterministic: Way(folder, deterministic=deterministic) for deterministic in (False, True)}
    for way in ways.values():
        await way.step(REPEATS, 0)  # compiles, and makes the buffers
    found: list[dict[str, Any]] = []
    for number in numbers:
        steps: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for repetition in range(repetitions):
            for deterministic in (False, True)[:: 1 if repetition % 2 == 0 else -1]:
                steps[deterministic].append(await ways[deterministic].step(number, repetition + 1))
                print(f"  {number} episodes, deterministic {deterministic}: {steps[deterministic][-1]}", flush=True)
        without, with_it = (
            {name: statistics.median(step[name] for step in steps[way]) for name in steps[way][0]} for way in ways
        )
        found.append({"episodes": number, "without": without, "deterministic": with_it})
    for way in ways.values():
        await way.engine.aclose()
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    head = ("episodes", "rollout, s", "training, s", "both", "mean difference", "largest")
    rows: list[tuple[object, ...]] = []
    for each in found:
        plain, exact = each["without"], each["deterministic"]
        seconds = [f"{plain[name]:.2f} -> {exact[name]:.2f}" for name in ("rollout", "training")]
        differ = [f"{plain[name]:.3g} -> {exact[name]:.3g}" for name in ("mean", "max")]
        rows.append((each["episodes"], *seconds, f"{exact['both'] / plain['both']:.2f}x", *differ))
    return markdown_table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[8, 24, 64], help="how many at once")
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    about = machine()
    found = asyncio.run(measure(arguments.episodes, arguments.repetitions))
    text = table(found)
    write_results(
        "deterministic", {"machine": about, "found": found}, f"# `deterministic: true`\n\n{describe(about)}\n\n{text}"
    )
    print(f"\n{text}")
    missed = [
        f"{each['episodes']} episodes: a difference, or more than {BAR}x the time"
        for each in found
        if each["deterministic"]["max"] != 0 or each["deterministic"]["both"] > BAR * each["without"]["both"]
    ]
    if missed:
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
