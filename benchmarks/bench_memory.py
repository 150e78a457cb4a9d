"""Memory by part: `make bench-memory`.

Each part is measured in a process of its own, with the small real model in the dtype of this machine: what the process
itself takes, with the trainer, with one optimiser step over timelines of so many tokens, with the engine, and with 64
sequences that begin alike in its cache. Then the peak of a whole process: a few steps of the calculator tutorial.
Beside each stands what `astune doctor` would say (`astune/backbone/memory.py`). Numbers of the kernel, read from
/proc: Linux alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, describe, machine, markdown_table, write_results

TOKENS = (1024, 2048, 8192, 32768)
KEPT_TOKENS = 1024
"""`tokens_per_microbatch` of the tutorial; of longer timelines layers are computed again."""
SEQUENCES = 64
TUTORIAL = ROOT / "tutorial" / "example_calculator" / "calculator.yaml"
MIB = 1 << 20


def resident(field: str) -> float:
    """`VmRSS` or `VmHWM` of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def _folder() -> Path:
    from astune.engine.model_files import resolve_model

    return resolve_model("builtin:smollm2-135m")


def process(_: int) -> float:
    import torch  # noqa: F401

    import_module("transformers")  # by name: pyright binds every model of an imported `transformers`
    import astune.engine
    import astune.trainer.policy  # noqa: F401

    return resident("VmRSS")


def trainer(_: int) -> float:
    from astune.config.schema import ModelConfig
    from astune.trainer.policy_model import PolicyModel

    model = PolicyModel.load(_folder(), ModelConfig(device="cpu"), seed=0)
    return resident("VmRSS") if model else 0.0


def step(tokens: int) -> float:
    """The peak of a forward and backward pass over two answers to one question, and of the optimiser's step."""
    import torch

    from astune.algorithm import GRPO
    from astune.config.schema import LossConfig, ModelConfig, OptimConfig
    from astune.schema import Episode, EpisodeGroup, Forest, MessageNode, Reward, Task
    from astune.trainer.gradient import accumulate_gradient
    from astune.trainer.loss import PolicyLoss
    from astune.trainer.microbatch import pack
    from astune.trainer.policy_model import PolicyModel
    from astune.trainer.samples import weighted

    model = PolicyModel.load(_folder(), ModelConfig(device="cpu"), seed=0)
    model.tokens_kept = KEPT_TOKENS
    rng, task, members = random.Random(0), Task(task_id="task", main_query="?"), []
    question = [rng.randrange(100, 40_000) for _ in range(tokens // 2)]
    for number in range(2):
        answer = [rng.randrange(100, 40_000) for _ in range(tokens // 4)]
        nodes = [
            MessageNode(0, None, "user", "", question, "agent"),
            MessageNode(
                1, 0, "assistant", "", answer, "agent", trainable=True, finish_reason="stop", weights_version=0,
                logprobs=[-10.0] * len(answer),
            ),
        ]  # fmt: skip
        members.append(
            Episode(
                episode_id=str(number), task=task, split="train", step=0, repeat=number, attempt=0, seed=0,
                forest=Forest(nodes), status="success", targets={},
                reward=Reward(raw_reward=float(number), is_success=bool(number)),
            )
        )  # fmt: skip
    batch = pack(weighted([EpisodeGroup(task, members)], [[-1.0, 1.0]], "episode"), torch.device("cpu"))
    model.masters.step(OptimConfig(), 0.0)  # from the second step on the moments are there
    accumulate_gradient(model, [batch], PolicyLoss(GRPO(), LossConfig()), 1.0)
    model.masters.step(OptimConfig(), 1e-6)
    return resident("VmHWM")


def engine(sequences: int) -> float:
    """The engine at rest, or with so many sequences in its cache: 300 tokens that all share, 50 of their own."""
    from astune.config.schema import EngineConfig, ModelConfig
    from astune.engine.local.in_process import InProcessEngine
    from astune.schema import SamplingParams

    model = InProcessEngine.load(
        _folder(), model=ModelConfig(device="cpu"), engine=EngineConfig(), max_model_len=512, deterministic=False
    )
    if not sequences:
        return resident("VmRSS")
    rng = random.Random(0)
    shared = [rng.randrange(100, 40_000) for _ in range(300)]

    async def sample() -> float:
        model.open_session("all")
        asked = [
            model.generate(
                shared + [rng.randrange(100, 40_000) for _ in range(50)], SamplingParams(max_tokens=2), session="all"
            )
            for _ in range(sequences)
        ]
        await asyncio.gather(*asked)
        return resident("VmRSS")

    return asyncio.run(sample())


def demo(steps: int) -> float:
    """The peak of the tutorial's own process."""
    command = [sys.executable, "-m", "astune", "--conf", str(TUTORIAL)]
    settings = {"record_dir": "launcher_record/bench_memory", "trainer.total_steps": steps, "trainer.test_freq": 1000}
    command += [word for key, value in settings.items() for word in ("--set", f"astune.{key}={value}")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


PARTS: dict[str, Callable[[int], float]] = {
    "process": process,
    "trainer": trainer,
    "step": step,
    "engine": engine,
    "demo": demo,
}


def measured(part: str, number: int) -> float:
    """A part in a process of its own, in MiB."""
    command = [sys.executable, "-m", "benchmarks.bench_memory", "--part", part, str(number)]
    ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = float(ended.stdout.split()[-1])
    print(f"  {part} {number or ''}: {found:.0f} MiB", flush=True)
    return found


def estimated(steps_tokens: int) -> dict[str, float]:
    """What the estimate says of the same model and tutorial, in MiB by part."""
    from astune.backbone.memory import ModelShape, local_memory
    from astune.config import load_config
    from astune.engine.local.device import pick_device, pick_dtype
    from astune.engine.model_files import read_sizes

    config = load_config(TUTORIAL, [f"trainer.tokens_per_microbatch={steps_tokens}"])
    shape = ModelShape.of(read_sizes(config.model.path) or {})
    if shape is None:
        raise SystemExit("the sizes of the small model are not known")
    in_bfloat16 = pick_dtype("auto", pick_device("cpu")).itemsize == 2
    parts = local_memory(config, shape, on_gpu=False, in_bfloat16=in_bfloat16).parts
    return {name: size / MIB for name, size in parts.items()}


def report(data: dict[str, Any]) -> str:
    rows = [(name, f"{found:.0f}") for name, found in data["measured"].items()]
    says = [(name, f"{size:.0f}") for name, size in data["estimated"].items() if size]
    return "\n\n".join(
        [
            "# Memory by part",
            describe(data["machine"]),
            "Resident memory of a process of its own, in MiB; a step's and the tutorial's are peaks. The small real "
            f"model; of more than {KEPT_TOKENS} tokens each layer is computed a second time.",
            markdown_table(("what is in the process", "MiB"), rows),
            f"The estimate of `astune doctor` for the tutorial, {sum(data['estimated'].values()):.0f} MiB in all:",
            markdown_table(("part", "MiB"), says),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs=2, metavar=("PART", "NUMBER"), help="measure one part in this process")
    parser.add_argument("--tokens", type=int, nargs="*", default=list(TOKENS), help="tokens of the steps")
    parser.add_argument("--demo-steps", type=int, default=4, help="steps of the tutorial; 0 leaves it out")
    arguments = parser.parse_args()
    if arguments.part:
        print(PARTS[arguments.part[0]](int(arguments.part[1])))
        return
    facts = machine()
    found = {"Python with torch and transformers": measured("process", 0), "the trainer": measured("trainer", 0)}
    for tokens in arguments.tokens:
        found[f"the trainer, after a step over {tokens} tokens (peak)"] = measured("step", tokens)
    found["the engine"] = measured("engine", 0)
    found[f"the engine with {SEQUENCES} sequences of 350 tokens"] = measured("engine", SEQUENCES)
    if arguments.demo_steps:
        found[f"{arguments.demo_steps} steps of the calculator tutorial (peak)"] = measured(
            "demo", arguments.demo_steps
        )
    data = {"machine": facts, "measured": found, "estimated": estimated(KEPT_TOKENS)}
    write_results("memory", data, report(data))
    print(json.dumps(data["estimated"], indent=2))


if __name__ == "__main__":
    main()
