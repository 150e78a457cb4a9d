"""Memory by part: `make bench-memory`.

Each part is measured in a process of its own, with the small real model: what the process itself takes, the trainer's
tensors, what one step over timelines of so many tokens takes beside them, the engine, and 64 sequences that begin alike
in its cache. Then the peak of a whole process: a few steps of the calculator tutorial. Beside it stands what
`astune doctor` says (`astune/backbone/memory.py`). Numbers of the kernel, read from /proc: Linux alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import ROOT, describe, machine, markdown_table, write_results

if TYPE_CHECKING:
    from astune.trainer.policy_model import PolicyModel

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


Found = dict[str, float]
"""MiB by what they are for, and seconds under names that begin with `SECONDS`."""
SECONDS = "seconds of a pass over"


def process(_: int, dtype: str) -> Found:
    import torch  # noqa: F401

    import_module("transformers")  # by name: pyright binds every model of an imported `transformers`
    import astune.engine
    import astune.trainer.policy  # noqa: F401

    return {"Python with torch and transformers": resident("VmRSS")}


def _trained(dtype: str) -> PolicyModel:
    """A model that has made a step: its moments are there."""
    from astune.config.schema import ModelConfig, OptimConfig
    from astune.trainer.policy_model import PolicyModel

    model = PolicyModel.load(_folder(), ModelConfig.model_validate({"device": "cpu", "dtype": dtype}), seed=0)
    model.tokens_kept = KEPT_TOKENS
    model.master_weights.step(OptimConfig(), 0.0)
    return model


def trainer(_: int, dtype: str) -> Found:
    from astune.config.schema import OptimConfig
    from astune.engine.local.allocator import give_back_freed_memory

    model = _trained(dtype)
    give_back_freed_memory()
    state = model.master_weights.state_dict(OptimConfig())
    weights = {each.data_ptr(): each.nbytes for each in model.module.parameters()}
    masters = {each.data_ptr(): each.nbytes for each in state["masters"].values()}
    moments = [one[name].nbytes for one in state["optimizer"]["state"].values() for name in ("exp_avg", "exp_avg_sq")]
    return {
        "the trainer's weights": sum(weights.values()) / MIB,
        "master weights beside them": sum(size for at, size in masters.items() if at not in weights) / MIB,
        "moments": sum(moments) / MIB,
        "gradients, during a step": sum(masters.values()) / MIB,
        "the process with weights, master weights and moments": resident("VmRSS"),
    }


def step(tokens: int, dtype: str) -> Found:
    """What a forward and backward pass over two answers to one question takes beside weights, moments and gradients."""
    import torch

    from astune.algorithm import GRPO
    from astune.config.schema import LossConfig
    from astune.engine.local.allocator import give_back_freed_memory
    from astune.schema import Episode, EpisodeGroup, Forest, MessageNode, Reward, Task
    from astune.trainer.gradient import accumulate_gradient
    from astune.trainer.loss import PolicyLoss
    from astune.trainer.microbatch import pack
    from astune.trainer.samples import weighted

    model = _trained(dtype)
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
    for gradient in model.master_weights.gradients().values():
        gradient.zero_()  # written once, so that all of it takes memory
    give_back_freed_memory()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    start = time.perf_counter()
    accumulate_gradient(model, [batch], PolicyLoss(GRPO(), LossConfig()), 1.0)
    seconds = time.perf_counter() - start
    return {f"activations and head, {tokens:,} tokens": resident("VmHWM") - before, f"{SECONDS} {tokens:,}": seconds}


def engine(sequences: int, dtype: str) -> Found:
    """The engine, and so many sequences in its cache: 300 tokens that all share, 50 of their own."""
    from astune.config.schema import EngineConfig, ModelConfig
    from astune.engine.local.allocator import give_back_freed_memory
    from astune.engine.local.in_process import InProcessEngine
    from astune.schema import SamplingParams

    settings = ModelConfig.model_validate({"device": "cpu", "dtype": dtype})
    model = InProcessEngine.load(_folder(), model=settings, engine=EngineConfig(), max_model_len=512)
    give_back_freed_memory()
    rest = resident("VmRSS")
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
        give_back_freed_memory()
        return resident("VmRSS")

    cached = asyncio.run(sample()) - rest
    return {"the process with the engine": rest, f"keys and values of {sequences} sequences of 350 tokens": cached}


def demo(steps: int, dtype: str) -> Found:
    """The peak of the tutorial's own process."""
    command = [sys.executable, "-m", "astune", "--conf", str(TUTORIAL)]
    settings = {
        "record_dir": "launcher_record/bench_memory",
        "model.dtype": dtype,
        "trainer.total_steps": steps,
        "trainer.test_freq": 1000,
    }
    command += [word for key, value in settings.items() for word in ("--set", f"astune.{key}={value}")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return {
        f"{steps} steps of the calculator tutorial, peak": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    }


PARTS: dict[str, Callable[[int, str], Found]] = {
    "process": process,
    "trainer": trainer,
    "step": step,
    "engine": engine,
    "demo": demo,
}


def measured(part: str, number: int, dtype: str) -> Found:
    """A part in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_memory", "--part", part, str(number), "--dtype", dtype]
    ended = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: Found = json.loads(ended.stdout.splitlines()[-1])
    for name, size in found.items():
        print(f"  {name}: {size:.0f}{'' if name.startswith(SECONDS) else ' MiB'}", flush=True)
    return found


def estimated(dtype: str) -> Found:
    """What the estimate says of the same model and tutorial, by part."""
    from astune.backbone.memory import ModelShape, local_memory
    from astune.config import load_config
    from astune.engine.model_files import read_sizes

    config = load_config(TUTORIAL)
    shape = ModelShape.of(read_sizes(config.model.path) or {})
    if shape is None:
        raise SystemExit("the sizes of the small model are not known")
    parts = local_memory(config, shape, on_gpu=False, in_bfloat16=dtype == "bfloat16").parts
    return {name: size / MIB for name, size in parts.items()}


def report(data: dict[str, Any]) -> str:
    measured = data["measured"].items()
    rows = [(name, f"{found:.0f}") for name, found in measured if not name.startswith(SECONDS)]
    passes = [(name.removeprefix(SECONDS), f"{found:.1f}") for name, found in measured if name.startswith(SECONDS)]
    says = [(name, f"{size:.0f}") for name, size in data["estimated"].items() if size]
    return "\n\n".join(
        [
            "# Memory by part",
            describe(data["machine"]),
            f"The small real model in {data['dtype']}, in MiB, each part in a process of its own. Activations are what "
            "a forward and backward pass adds to weights, moments and gradients at its peak; of more than "
            f"{KEPT_TOKENS:,} tokens each layer is computed a second time.",
            markdown_table(("part", "MiB"), rows),
            "The same passes, each the first of its process; half of the tokens are a question of both answers:",
            markdown_table(("tokens", "seconds"), passes),
            f"The estimate of `astune doctor` for the tutorial, {sum(data['estimated'].values()):.0f} MiB in all:",
            markdown_table(("part", "MiB"), says),
        ]
    )


def main() -> None:
    from astune.engine.local.device import pick_device, pick_dtype

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs=2, metavar=("PART", "NUMBER"), help="measure one part in this process")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="by default that of this machine")
    parser.add_argument("--tokens", type=int, nargs="*", default=list(TOKENS), help="tokens of the steps")
    parser.add_argument("--demo-steps", type=int, default=4, help="steps of the tutorial; 0 leaves it out")
    arguments = parser.parse_args()
    dtype = arguments.dtype or str(pick_dtype("auto", pick_device("cpu"))).removeprefix("torch.")
    if arguments.part:
        part, number = arguments.part
        print(json.dumps(PARTS[part](int(number), dtype)))
        return
    data: dict[str, Any] = {"machine": machine(), "dtype": dtype, "measured": {}, "estimated": estimated(dtype)}
    parts = [("process", 0), ("trainer", 0), *(("step", tokens) for tokens in arguments.tokens), ("engine", SEQUENCES)]
    parts += [("demo", arguments.demo_steps)] if arguments.demo_steps else []
    for part, number in parts:
        data["measured"] |= measured(part, number, dtype)
        write_results("memory", data, report(data))


if __name__ == "__main__":
    main()
