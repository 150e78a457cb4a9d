"""What a run will do, in words, for `--dry-run`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from astune.backbone.cluster import ray_cluster
from astune.backbone.cluster.layers import measures
from astune.config import AstuneConfig
from astune.launcher.companion import Companion

if TYPE_CHECKING:
    from astune.backbone.memory import Estimate
    from astune.backbone.parts import UserParts


def plan(
    config: AstuneConfig,
    parts: UserParts,
    run_path: Path | None,
    companions: Sequence[Companion] = (),
    memory: Sequence[Estimate] = (),
) -> list[str]:
    """What a run will do, in words; without training tasks, these are still to be asked for."""
    beside = [f"  companion  {companion.name}: {shlex.join(companion.command)}" for companion in companions]
    if config.engine.type == "vllm" and not config.engine.base_url:
        beside.append(f"  companion  vllm: a server of {config.model.path} on port {config.engine.vllm.port}")
    if config.backbone == "debug":
        return [*_debug_plan(config, parts), *beside]
    trainer, rollout = config.trainer, config.rollout
    episodes = trainer.tasks_per_step * rollout.num_repeat
    tasks, epochs = _known_when_asked(config), ""
    if n_tasks := len(parts.training_tasks):
        tasks, epochs = f"{n_tasks} tasks", f", {trainer.total_steps * trainer.tasks_per_step / n_tasks:.2g} epochs"
    trained = f"LoRA adapters of rank {config.model.lora.rank}" if config.model.lora.rank else "every weight"
    judge = config.task_judge.judge_protocol or "the workflow's own"
    lines = [
        "plan",
        f"  backbone   {config.backbone}, {trained} of {config.model.path}",
        f"  workflow   {rollout.workflow}",
        f"  reward     {judge}",
        f"  training   {tasks}; {trainer.total_steps} steps of {trainer.tasks_per_step} tasks"
        f" x {rollout.num_repeat} episodes = {episodes} episodes a step{epochs}",
        *(f"  memory     about {each.summary()}; estimated, not measured" for each in memory),
        *_particular(config, any(companion.name == "ray" for companion in companions)),
        f"  held out   {_measured(config, parts)}",
        f"  saved      every {trainer.save_freq} steps, in "
        f"{run_path or f'{config.record_dir}/{config.experiment_name}/<time>/'}",
    ]
    if trainer.validation.stop_at_success is not None and parts.validation_tasks:
        lines.append(f"  ends early at {trainer.validation.stop_at_success:.0%} held-out success")
    return lines + beside


def _particular(config: AstuneConfig, starts_ray: bool) -> Iterator[str]:
    """What is not so in every run: terms of the loss, episodes ahead of the trainer, a cluster."""
    loss, ahead = config.trainer.loss, config.trainer.max_staleness
    terms = (("KL divergence from the weights at the start", loss.kl_coef), ("entropy", loss.entropy_coef))
    if told := ", ".join(f"{term} x {weight:g}" for term, weight in terms if weight):
        yield f"  loss       with {told}"
    if config.cluster_engine is None:
        return
    if ahead:
        yield f"  ahead      episodes are run up to {ahead} step{'s' * (ahead > 1)} ahead of the weights"
    address = ray_cluster.address()
    place = "a Ray of its own, on this machine" if address == ray_cluster.OWN else f"Ray at {address}"
    yield f"  cluster    {'the Ray head of --with-ray' if starts_ray else place}"


def _measured(config: AstuneConfig, parts: UserParts) -> str:
    if not measures(config):
        return "nothing is measured: Trinity's fully_async has no moment for it"
    trainer = config.trainer
    if not parts.training_tasks and config.task_reader.env_service.validation_split:
        return _known_when_asked(config)
    held_out = min(len(parts.validation_tasks), trainer.validation.max_tasks or len(parts.validation_tasks))
    if not held_out:
        return "no tasks: nothing is measured"
    when = f"before training, every {trainer.test_freq} steps and at the end"
    return f"{held_out} task{'s' * (held_out > 1)} x {trainer.validation.num_repeat} {when}"


def _known_when_asked(config: AstuneConfig) -> str:
    return f"tasks: known when {config.task_reader.env_service.env_url} answers"


def _debug_plan(config: AstuneConfig, parts: UserParts) -> list[str]:
    n_tasks, first_n = len(parts.training_tasks), config.debug.debug_first_n_tasks
    tasks = f"the first {min(first_n, n_tasks)} of {n_tasks} training tasks"
    if not n_tasks:
        tasks = f"the first {first_n} {_known_when_asked(config)}"
    judge = config.task_judge.judge_protocol or "the workflow's own"
    return [
        "plan",
        f"  backbone   debug: nothing is trained, one thread, no deadlines; answers from {config.model.path}",
        f"  workflow   {config.rollout.workflow}",
        f"  reward     {judge}",
        f"  episodes   {tasks}, one episode each, "
        f"{config.debug.debug_max_parallel if parts.workflow.is_async() else 1} at once",
        f"  saved      in {config.record_dir}/{config.experiment_name}/<time>/",
    ]
