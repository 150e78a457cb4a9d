"""Commands that run episodes or train: train, demo, sft, dpo, sweep, optimize-prompt, flywheel,
eval, worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from astune.cli._errors import RESUMES
from astune.cli._flags import Commands, DryRun, Plan, Set, With, WithAppworld, WithRay, plan_of, with_backbone

training_commands = Commands("Train and measure")


@training_commands.command()
def train(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="The agent: a program in any language, run once an episode."),
    ],
    tasks: Annotated[Path, typer.Option("--tasks", metavar="FILE.jsonl", help="Training tasks.")],
    judge: Annotated[
        str | None,
        typer.Option(
            "--judge",
            metavar="REF",
            help="Judge: file.py, file.py->Class or module->Class. Without one, the program prints the reward.",
        ),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            "--validation", metavar="FILE.jsonl", help="Held-out tasks, measured before, during and after training."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="Model to train: a folder, a hub id, or builtin:smollm2-135m, the default."
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", metavar="NAME", help="Trainer: local (the default), debug, verl or trinity."),
    ] = None,
    plan: Plan = None,
    overrides: Set = None,
) -> int:
    """Train the model behind a program that calls OpenAI's or Anthropic's API.

    Example: `astune train --tasks tasks.jsonl --judge judge.py -- python my_program.py`
    """
    from astune.cli._program import experiment_of
    from astune.cli._train import Request, train_or_plan

    values = experiment_of(command, tasks=tasks, judge=judge, validation=validation, model=model)
    request = Request(None, with_backbone(overrides, backbone), plan=plan_of(plan), values=values)
    return train_or_plan(request)


@training_commands.command()
def demo(plan: Plan = None, overrides: Set = None) -> int:
    """Train a small real model to use a calculator, in a few minutes without a GPU.

    It trains low-rank adapters; `astune --conf tutorial/example_calculator/calculator.yaml` trains all weights on the
    same tasks.
    """
    from astune.cli._train import Request, train_or_plan
    from astune.config.tutorials import DEMO, DEMO_SETTINGS, tutorial_file

    settings = [*DEMO_SETTINGS, *(overrides or [])]
    return train_or_plan(Request(tutorial_file(DEMO), settings, plan=plan_of(plan)))


@training_commands.command()
def sft(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="Experiment whose tasks have answers.")],
    overrides: Set = None,
    plan: Plan = None,
    with_: With = None,
) -> int:
    """Fine-tune on given answers (SFT), and measure held-out tasks before, during and after.

    A task has a whole conversation in metadata.messages, or a reference answer. `astune --resume` continues a run.
    """
    return _train_as(conf, overrides, plan, with_, {"trainer": {"algorithm": "sft"}})


@training_commands.command()
def dpo(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="Experiment whose tasks have pairs of answers.")],
    overrides: Set = None,
    plan: Plan = None,
    with_: With = None,
) -> int:
    """Train on preference pairs (DPO), and measure held-out tasks before, during and after.

    A task has metadata.rejected, and metadata.chosen or a reference answer. `astune --resume` continues a run.
    """
    over = {"trainer": {"algorithm": "dpo"}, "task_reader": {"feedback_tracing": {"only_pairs": True}}}
    return _train_as(conf, overrides, plan, with_, over)


def _train_as(
    conf: Path, overrides: list[str] | None, plan: str | None, with_: list[str] | None, over: dict[str, Any]
) -> int:
    """Train an experiment with values that go before those of its file."""
    from astune.cli._train import Request, train_or_plan
    from astune.launcher.companion import CompanionFlags

    companions = CompanionFlags(tuple(with_ or ()))
    return train_or_plan(Request(conf, overrides or [], plan=plan_of(plan), companions=companions, over=over))


@training_commands.command("optimize-prompt")
def optimize_prompt(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="Experiment whose rollout.params hold prompts.")],
    overrides: Set = None,
    plan: Plan = None,
    with_: With = None,
) -> int:
    """Improve a workflow's prompts by GEPA without training, and measure held-out tasks before and after."""
    from astune.cli._optimize_prompt import search_or_plan
    from astune.launcher.companion import CompanionFlags

    companions = CompanionFlags(tuple(with_ or ()))
    return search_or_plan(conf, overrides or [], companions, plan=plan_of(plan))


@training_commands.command()
def sweep(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="Experiment to train.")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=V1,V2",
            help="Values of a key, such as trainer.optim.lr=1e-5,5e-5; repeatable: all combinations are trained.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, metavar="N", help="Runs of each combination, with consecutive seeds.")
    ] = 1,
    ray: Annotated[
        bool,
        typer.Option("--ray", metavar=" ", help="Run them on a Ray cluster that is already running."),
    ] = False,
    cpus: Annotated[int, typer.Option("--cpus", min=0, metavar="N", help="With --ray: CPUs of each run.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus", min=0, metavar="N", help="With --ray: GPUs of each run.")] = 0,
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Train an experiment with several settings and seeds, and compare the runs in one table.

    Runs are written into the folder EXPERIMENT-sweep, one after another. After an interruption, the same command
    resumes.
    """
    from astune.cli._sweep import sweep

    resources = (cpus, gpus) if ray else None
    return sweep(conf, over or [], seeds, overrides or [], resources, dry_run=dry_run is not None)


@training_commands.command(interrupted=RESUMES)
def flywheel(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[rollback] CONF",
            help="Experiment; with `rollback` before it, return to the previously promoted model.",
        ),
    ],
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Train on new user feedback, and promote the new model only if it is proven better than the old one.

    One turn imports and filters feedback, trains, evaluates both models, decides and writes a report. After an
    interruption, the same command resumes.
    """
    from astune.cli._flywheel import turn_flywheel

    return turn_flywheel(words, overrides or [], dry_run=dry_run is not None)


@training_commands.command("eval")
def evaluate(
    conf: Annotated[
        Path, typer.Argument(metavar="CONF", help="Experiment whose held-out tasks, workflow and judge are used.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PATH",
            help="Model to measure: a RUN (its best model), a checkpoint, or a value of model.path; by default the "
            "experiment's model.path.",
        ),
    ] = None,
    overrides: Set = None,
    with_: With = None,
    with_ray: WithRay = False,
    with_appworld: WithAppworld = False,
) -> int:
    """Measure a model on held-out tasks, with a 95 % confidence interval; nothing is trained."""
    from astune.cli._evaluate import evaluate_model
    from astune.launcher.companion import CompanionFlags

    flags = CompanionFlags(tuple(with_ or ()), with_ray, with_appworld)
    return evaluate_model(conf, model, overrides or [], flags)


@training_commands.command()
def worker(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="The agent: a program in any language, run once an episode."),
    ],
    connect: Annotated[
        str, typer.Option("--connect", metavar="URL", help="Address of the run, such as http://trainer:8183.")
    ],
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            help="Secret of the run; by default ASTUNE_WORKER_TOKEN, which no process list shows.",
        ),
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", min=1, metavar="N", help="Concurrent episodes.")] = 1,
    memory_mb: Annotated[
        int | None,
        typer.Option(
            "--memory-mb",
            min=1,
            metavar="MB",
            help="Memory limit of one program and its child processes, in MiB; no limit by default.",
        ),
    ] = None,
) -> int:
    """Run episodes of a training run on this machine; the run sets rollout.workflow.workers."""
    from astune.cli._worker import work_for

    return work_for(connect, token, command, parallel, memory_mb)
