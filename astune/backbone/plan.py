"""The plan of a run that trains, in words, for `--dry-run`: labelled lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from astune.config.bases import Base
from astune.config.schema import AstuneConfig, ProgramConfig

if TYPE_CHECKING:
    from astune.backbone.memory import Estimate
    from astune.backbone.parts import UserParts

Rows = list[tuple[str, str]]


def training_plan(
    config: AstuneConfig,
    parts: UserParts,
    *,
    particulars: Iterable[tuple[str, str]],
    unmeasured: str,
    run_path: Path | None,
    memory: Sequence[Estimate],
) -> Rows:
    """Plan of a run that trains; `particulars` are lines that its backbone adds.

    Args:
        unmeasured: why the backbone cannot measure held-out tasks; empty where it can.
        run_path: the run that is resumed; None for a new one.
    """
    trainer, rollout = config.trainer, config.rollout
    episodes = trainer.tasks_per_step * rollout.num_repeat
    tasks, epochs = known_when_asked(config), ""
    if n_tasks := len(parts.training_tasks):
        tasks, epochs = f"{n_tasks} tasks", f", {trainer.total_steps * trainer.tasks_per_step / n_tasks:.2g} epochs"
    trained = f"LoRA adapters of rank {config.model.lora.rank}" if config.model.lora.rank else "every weight"
    trained = "; ".join(map(_policies, config.bases())) if config.models else f"{trained} of {config.model.path}"
    saves = f"every {trainer.save_freq} steps and " if trainer.save_freq < trainer.total_steps else ""
    rows: Rows = [
        ("backbone", f"{config.backbone}, {trained}"),
        *agent(config),
        (
            "training",
            f"{tasks}; {trainer.total_steps} steps of {trainer.tasks_per_step} tasks"
            f" x {rollout.num_repeat} episodes = {episodes} episodes a step{epochs}",
        ),
        *(("memory", f"about {each.summary()}; estimated, not measured") for each in memory),
        *_loss_terms(config),
        *particulars,
        ("held out", f"nothing is measured: {unmeasured}" if unmeasured else _measured(config, parts)),
        ("saved", f"{saves}at the end, in {run_path or folder_of(config)}"),
    ]
    if trainer.validation.stop_at_success is not None and parts.validation_tasks:
        rows.append(("ends early", f"at {trainer.validation.stop_at_success:.0%} held-out success"))
    return rows


def _policies(base: Base) -> str:
    """A model, and the policies on it."""
    names = ", ".join(f"{name}{'' if policy.train else ' (frozen)'}" for name, policy in base.policies.items())
    if base.whole is not None:
        return f"every weight of {names}, from {base.path}"
    if base.trained:
        return f"the adapters {names} of {base.path}"
    return f"{names or 'untrained for agents of no policy'}: {base.path}"


def agent(config: AstuneConfig) -> Rows:
    """Workflow and reward."""
    workflow = config.rollout.workflow
    program = workflow if isinstance(workflow, str) else _outside(workflow)
    judge = config.task_judge.judge_protocol or "the workflow's own"
    if not isinstance(judge, str):
        judge = " + ".join(f"{each.weight:g} x {each.judge}" for each in judge)
    return [("workflow", program), ("reward", judge)]


def _outside(agent: ProgramConfig) -> str:
    place = ", in the sandbox" if agent.sandboxed else ""
    return f"workers at {agent.workers}" if agent.workers else agent.url or f"{shlex.join(agent.command)}{place}"


def known_when_asked(config: AstuneConfig) -> str:
    """Tasks that are not known yet: a companion brings them, or the helper model makes them."""
    reader = config.task_reader
    if reader.type == "data_generation":
        return f"tasks: {reader.data_generation.number} that the helper model makes, unless it has made them before"
    return f"tasks: known when {config.task_reader.env_service.env_url} answers"


def folder_of(config: AstuneConfig) -> str:
    """The folder into which a new run is written."""
    return f"{config.record_dir}/{config.experiment_name}/<time>/"


def _loss_terms(config: AstuneConfig) -> Rows:
    loss = config.trainer.loss
    terms = (("KL divergence from the weights at the start", loss.kl_coef), ("entropy", loss.entropy_coef))
    algorithm = config.trainer.algorithm.type
    rows = [] if algorithm == "grpo" else [("algorithm", algorithm)]
    named = ", ".join(f"{term} x {weight:g}" for term, weight in terms if weight)
    return [*rows, ("loss", f"with {named}")] if named else rows


def _measured(config: AstuneConfig, parts: UserParts) -> str:
    trainer = config.trainer
    made = config.task_reader.type == "data_generation"
    if not parts.training_tasks and (made or config.task_reader.env_service.validation_split):
        return known_when_asked(config)
    held_out = min(len(parts.validation_tasks), trainer.validation.max_tasks or len(parts.validation_tasks))
    if not held_out:
        return "no tasks: nothing is measured"
    when = f"before training, every {trainer.test_freq} steps and at the end"
    return f"{held_out} task{'s' * (held_out > 1)} x {trainer.validation.num_repeat} {when}"
