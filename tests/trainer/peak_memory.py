"""A hundred training steps with rollouts between them, in a process of its own: prints its peak memory after some.

Each step has another number of tokens and of requests at once, as real ones do, so that no block and no kernel of one
step fits the next.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from trainer_helpers import config, episode, group, node, save_small_llama

from astune.config.schema import EngineConfig
from astune.engine import InProcessEngine
from astune.schema import SamplingParams, TrainingBatch
from astune.trainer.policy import PolicyTrainer

VOCABULARY = 2048
STEPS, FIRST = 100, 20


def peak_mib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def batch(step: int, rng: random.Random) -> TrainingBatch:
    """Two answers to one question."""

    def tokens(least: int, most: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(rng.randint(least, most))]

    question, members = tokens(50, 200), []
    for number in range(2):
        answer = tokens(50, 150)
        nodes = [node(0, None, question), node(1, 0, answer, sampled=len(answer))]
        members.append(episode(nodes, name=f"{step}-{number}"))
    return TrainingBatch(step, [group(members)], [[1.0, -1.0]])


async def rollout(engine: InProcessEngine, requests: int, rng: random.Random) -> None:
    engine.open_session("all")
    prompts = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(5, 40))] for _ in range(requests)]
    params = SamplingParams(max_tokens=3, seed=1)
    await asyncio.gather(*(engine.generate(prompt, params, session="all") for prompt in prompts))
    engine.close_session("all")


async def main(folder: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    save_small_llama(folder, **sizes, vocab_size=VOCABULARY)
    settings = config(tokens_per_microbatch=512)
    trainer, rng = PolicyTrainer.load(folder, settings), random.Random(0)
    engine = InProcessEngine.load(folder, model=settings.model, engine=EngineConfig(), max_model_len=512)
    for step in range(1, STEPS + 1):
        await rollout(engine, 1 + (7 * step) % 64, rng)
        await trainer.make_room(engine)
        trainer.step(batch(step, rng))
        await trainer.publish(engine)
        if step in (FIRST, STEPS):
            sys.stdout.write(f"{peak_mib()}\n")
    await engine.aclose()


asyncio.run(main(Path(sys.argv[1])))
