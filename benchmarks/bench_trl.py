"""Seconds a training step, ours and TRL's GRPOTrainer, one after the other: `make bench-learning` runs it last.

Both train SmolLM2-135M, every weight, on the calculator tutorial: the same 8 tasks a step x 8 episodes in the same
order, the same few-shot conversation, the same calculator, the same limits on turns and tokens, GRPO with the same
rate, clipping and group size, no KL, one update a step, bf16. Both start from the same weights, those of our own run
after a few steps: there about half of the episodes succeed, so that most groups carry a gradient and ours may not save
the work of training those that do not (TRL trains them all the same). With `--start base` both start from the untrained
model instead, where most episodes fail and ramble. Ours runs as a user runs it, through AgentScope, recording every
episode.

TRL's settings are `TRL_SETTINGS`: bfloat16 throughout, which spares it casts. Its vLLM modes need a GPU.
The first step of each is a warm-up and not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.own_runs import lines_of, resolved, step_seconds, train
from benchmarks.report import ROOT, describe, machine, markdown_table, write_results

CONF = ROOT / "tutorial" / "example_calculator" / "calculator.yaml"
PYTHON = ROOT / ".venv-trl" / "bin" / "python"
BAR = 8.0
HALF = 0.4
"""Held-out success at which the run that makes the starting weights ends."""
COUNTED_STEPS = 4
TRL_SETTINGS = {"weights": "bfloat16", "micro_batch": 16, "continuous_batching": False, "attention": "sdpa"}
"""`weights` bfloat16 draws and trains in bf16 without casts; ours keeps float32 masters beside."""

Step = dict[str, Any]


def half_trained(seed: int) -> Path:
    """Weights from which about half of the episodes succeed: those of our run, ended early."""
    run = train(
        CONF,
        "trl_start",
        [
            f"astune.seed={seed}",
            "astune.trainer.test_freq=2",
            "astune.trainer.validation.max_tasks=32",
            f"astune.trainer.validation.stop_at_success={HALF}",
        ],
    )
    latest = run.checkpoints.latest()
    if latest is None:
        raise SystemExit(f"{run.path} has no checkpoint")
    return latest.model


def measure_ours(overrides: list[str]) -> list[Step]:
    run = train(CONF, "trl_ours", overrides)
    steps = []
    for line in lines_of(run, "train"):
        metrics = line.metrics
        steps.append(
            {
                "seconds": step_seconds(line),
                "rollout_seconds": metrics["time/rollout_s"],
                "episodes": int(metrics["episodes/finished"]),
                "sampled_tokens": int(metrics["engine/sampled_tokens"]),
                "prompt_tokens": int(metrics["engine/prompt_tokens"]),
                "reward": metrics["reward/mean"],
                "groups_with_variance": int(metrics["groups/used"]),
            }
        )
    return steps


def measure_trl(overrides: list[str], model: Path, steps: int) -> list[Step]:
    if not PYTHON.exists():
        raise SystemExit("there is no .venv-trl; make it with: make env-trl")
    from astune.backbone.local import task_order
    from astune.backbone.parts import load_parts
    from tutorial.example_calculator.calculator import EXAMPLES, SYSTEM_PROMPT

    config = resolved(CONF, overrides)
    order = task_order(config, load_parts(config, CONF.parent))
    examples = [{"role": role, "content": text} for role, text in EXAMPLES]
    job = {
        "model": str(model),
        "seed": config.seed,
        "steps": [
            [
                {
                    "messages": [
                        {"role": "system", "content": SYSTEM_PROMPT},
                        *examples,
                        {"role": "user", "content": task.main_query},
                    ],
                    "answer": str(task.metadata["answer"]),
                }
                for task in order.take(config.trainer.tasks_per_step)
            ]
            for _ in range(steps)
        ],
        "tasks_per_step": config.trainer.tasks_per_step,
        "num_repeat": config.rollout.num_repeat,
        "max_turns": config.rollout.multi_turn.max_steps,
        "max_model_len": config.rollout.max_model_len,
        "max_tokens": config.rollout.max_response_length_in_one_turn,
        "lr": config.trainer.optim.lr,
        "warmup_steps": config.trainer.optim.warmup_steps,
        "settings": TRL_SETTINGS,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        ended = subprocess.run(
            [str(PYTHON), "-m", "benchmarks.trl_peer", file.name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if ended.returncode != 0:
        raise SystemExit(f"TRL ended with {ended.returncode}")
    answers = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"seconds"')]
    if len(answers) != steps:
        raise SystemExit(f"TRL trained {len(answers)} of {steps} steps")
    return answers


def compare(start: str, seed: int, steps: int) -> dict[str, Any]:
    """Measure both, write the files, and return what was found, `ratio` and `missed` among it."""
    facts = machine()
    model = half_trained(seed) if start == "half" else base_model()
    overrides = [
        f"astune.seed={seed}",
        f"astune.model.path={model}",
        f"astune.trainer.total_steps={steps + 1}",
        "astune.trainer.test_freq=1000",
        "astune.trainer.save_freq=1000",
        "astune.trainer.validation.max_tasks=8",
        "astune.trainer.validation.stop_at_success=null",
        "astune.trainer.dynamic_sampling.max_extra_tasks=0",
        "astune.trainer.optim.lr_final_ratio=1.0",
    ]
    ours = measure_ours(overrides)[1:]
    trl = measure_trl(overrides, model, steps + 1)[1:]
    found = {"ours": _summary(ours), "trl": _summary(trl)}
    ratio = found["trl"]["seconds"] / found["ours"]["seconds"]
    tokens = found["trl"]["sampled_tokens"] / found["ours"]["sampled_tokens"]
    names = (
        "seconds",
        "rollout_seconds",
        "sampled_tokens",
        "prompt_tokens",
        "episodes",
        "groups_with_variance",
        "reward",
    )
    rows = [(name, f"{found['ours'][name]:.4g}", f"{found['trl'][name]:.4g}") for name in names]
    table = markdown_table(("a step, median", "ours", "TRL"), rows)
    text = f"""# A training step against TRL's GRPOTrainer

{describe(facts)}; TRL as in scripts/make_peer_env.sh, settings {describe(TRL_SETTINGS)}.

{(__doc__ or "").partition(chr(10) * 2)[2]}
Started from the {"half-trained" if start == "half" else "untrained"} model; medians of {steps} steps.

{table}

Seconds a step, TRL to ours: **{ratio:.1f}x**, with {tokens:.2f}x the generated tokens.
"""
    name = "trl" if start == "half" else f"trl_{start}"
    data = {
        "machine": facts,
        "start": start,
        "settings": TRL_SETTINGS,
        "ours": ours,
        "trl": trl,
        "ratio": round(ratio, 2),
        "token_ratio": round(tokens, 3),
        "bar": BAR,
        "missed": [] if ratio >= BAR else [f"TRL takes {ratio:.1f}x our seconds a step, {BAR}x is the bar"],
    }
    write_results(name, data, text)
    print(f"\n{table}\n")
    print(f"generated tokens a step, TRL to ours: {tokens:.2f}x")
    print(f"seconds a step, TRL to ours: {ratio:.1f}x")
    return data


def _summary(steps: list[Step]) -> dict[str, float]:
    return {name: statistics.median(step[name] for step in steps) for name in steps[0]}


def base_model() -> Path:
    from astune.engine.model_files import resolve_model

    return resolve_model(resolved(CONF).model.path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", choices=("half", "base"), default="half", help="the weights to start from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=COUNTED_STEPS)
    arguments = parser.parse_args()
    missed = compare(arguments.start, arguments.seed, arguments.steps)["missed"]
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
