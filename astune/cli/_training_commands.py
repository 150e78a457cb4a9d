"""Commands that play episodes or train: train, demo, sft, dpo, sweep, optimize-prompt, flywheel,
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
    tasks: Annotated[Path, typer.Option("--tasks", metavar="FILE.jsonl", help="The tasks to train on.")],
    judge: Annotated[
        str | None,
        typer.Option(
            "--judge",
            metavar="REF",
            help="The reward: file.py, file.py->Class or module->Class. Without one the program's own reward counts.",
        ),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option("--validation", metavar="FILE.jsonl", help="Held-out tasks, tested before, during and after."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="A local folder, a hub id, or builtin:smollm2-135m."),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", metavar="NAME", help="local, debug, verl or trinity."),
    ] = None,
    plan: Plan = None,
    overrides: Set = None,
) -> int:
    """Train the model behind any program that speaks OpenAI's API: astune train --tasks T --judge J -- COMMAND."""
    from astune.cli._program import experiment_of
    from astune.cli._train import Request, train_or_plan

    values = experiment_of(command, tasks=tasks, judge=judge, validation=validation, model=model)
    request = Request(None, with_backbone(overrides, backbone), plan=plan_of(plan), values=values)
    return train_or_plan(request)


@training_commands.command()
def demo(plan: Plan = None, overrides: Set = None) -> int:
    """A small real model learns to use a calculator, in a few minutes without a GPU.

    Trains low-rank adapters. `astune --conf tutorial/example_calculator/calculator.yaml` is the same with all weights.
    """
    from astune.cli._train import Request, train_or_plan
    from astune.config.tutorials import DEMO, DEMO_SETTINGS, tutorial_file

    settings = [*DEMO_SETTINGS, *(overrides or [])]
    return train_or_plan(Request(tutorial_file(DEMO), settings, plan=plan_of(plan)))


@training_commands.command()
def sft(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment whose tasks bring answers to learn.")],
    overrides: Set = None,
    plan: Plan = None,
    with_: With = None,
) -> int:
    """Learn the answers that tasks bring, by supervised fine-tuning; held-out tasks are played and measured as ever.

    A task brings metadata.messages, a whole conversation, or a reference answer. Go on with `astune --resume`.
    """
    return _train_as(conf, overrides, plan, with_, {"trainer": {"algorithm": "sft"}})


@training_commands.command()
def dpo(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment whose tasks bring pairs of answers.")],
    overrides: Set = None,
    plan: Plan = None,
    with_: With = None,
) -> int:
    """Learn to prefer one answer to another, by direct preference optimisation; held-out tasks are played as ever.

    A task brings metadata.chosen, or a reference answer, and metadata.rejected. Go on with `astune --resume`.
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
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment whose rollout.params hold prompts.")],
    overrides: Set = None,
    plan: Plan = None,
    with_: With = None,
) -> int:
    """Improve a workflow's prompts by reflection, with the weights as they are, and measure before and after."""
    from astune.cli._optimize_prompt import search_or_plan
    from astune.launcher.companion import CompanionFlags

    companions = CompanionFlags(tuple(with_ or ()))
    return search_or_plan(conf, overrides or [], companions, plan=plan_of(plan))


@training_commands.command()
def sweep(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment.")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=V1,V2",
            help="Values of a key, as trainer.optim.lr=1e-5,5e-5; repeatable: all combinations are trained.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, metavar="N", help="Runs of each combination, with seeds counting up.")
    ] = 1,
    ray: Annotated[
        bool,
        typer.Option("--ray", metavar=" ", help="Run them on the Ray cluster that is there, as it has room for them."),
    ] = False,
    cpus: Annotated[int, typer.Option("--cpus", min=0, metavar="N", help="With --ray: CPUs of each run.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus", min=0, metavar="N", help="With --ray: GPUs of each run.")] = 0,
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Train an experiment with several settings and seeds, one run after another, and report them side by side.

    The runs are ordinary ones in the folder EXPERIMENT-sweep. After a kill, the same command resumes.
    """
    from astune.cli._sweep import sweep

    resources = (cpus, gpus) if ray else None
    return sweep(conf, over or [], seeds, overrides or [], resources, dry_run=dry_run is not None)


@training_commands.command(interrupted=RESUMES)
def flywheel(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[rollback] CONF", help="The experiment; after `rollback`, return to the model before."),
    ],
    overrides: Set = None,
    dry_run: DryRun = None,
) -> int:
    """Learn from new feedback, and promote the model only when it is proven better; or roll a promotion back.

    A turn imports, filters, trains, evaluates old and new, decides and reports. After a kill, the same command resumes.
    """
    from astune.cli._flywheel import turn_flywheel

    return turn_flywheel(words, overrides or [], dry_run=dry_run is not None)


@training_commands.command("eval")
def evaluate(
    conf: Annotated[Path, typer.Argument(metavar="CONF", help="The experiment to take held-out tasks from.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="PATH",
            help="A model as in astune.model.path, which it replaces, a RUN, or a checkpoint.",
        ),
    ] = None,
    overrides: Set = None,
    with_: With = None,
    with_ray: WithRay = False,
    with_appworld: WithAppworld = False,
) -> int:
    """Measure a model on the held-out tasks, with 95 % confidence intervals; nothing is trained."""
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
    connect: Annotated[str, typer.Option("--connect", metavar="URL", help="The run's address: http://trainer:8183.")],
    token: Annotated[
        str | None,
        typer.Option(
            "--token", metavar="TOKEN", help="The run's token; better in ASTUNE_WORKER_TOKEN, where no process sees it."
        ),
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", min=1, metavar="N", help="Episodes at once.")] = 1,
    memory_mb: Annotated[
        int | None,
        typer.Option("--memory-mb", min=1, metavar="MB", help="Memory that one program may hold, in MiB."),
    ] = None,
) -> int:
    """Play episodes of a run on another machine: its rollout.workflow.workers says where."""
    from astune.cli._worker import work_for

    return work_for(connect, token, command, parallel, memory_mb)
