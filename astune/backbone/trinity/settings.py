"""Trinity's configuration of a run: its defaults, ours, what follows from the user's keys, and the user's own.

This runs in Trinity's environment, whose types a configuration must fit.
"""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from trinity.common.config import Config
from trinity.common.constants import SyncMethod, SyncStyle

from astune.backbone.cluster import ray_cluster
from astune.backbone.cluster.layers import as_typed, layers_of, leaves, precision, require_known
from astune.backbone.cluster.work_order import GroupToRun, WorkOrder
from astune.backbone.trinity.names import HELD_OUT, TASKS, n_runners, runners_per_model
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError

_ALGORITHM = "astune.backbone.trinity.algorithm"
_EXPERIENCES = "buffer.trainer_input.experience_buffer"
_FSDPS = tuple(f"trainer.trainer_config.actor_rollout_ref.{role}.fsdp_config" for role in ("actor", "ref"))


def trinity_config(order: WorkOrder, *, on_cpu: bool) -> Config:
    """Build the configuration of Trinity's explorer and trainer, validated by Trinity.

    Raises:
        ConfigError: a key is none of the installed Trinity's, or a value is none that it takes.
    """
    config = order.config
    known = dict(leaves(OmegaConf.to_container(OmegaConf.structured(Config), enum_to_str=True)))  # type: ignore[arg-type]
    settings = OmegaConf.create()
    for source, values in layers_of("trinity", config, _of_this_run(order), on_cpu=on_cpu):
        for key, value in values.items():
            _require_known(key, known, source)
            OmegaConf.update(settings, key, as_typed(value, known.get(key)), force_add=True)
    try:
        made: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), settings))
    except OmegaConfBaseException as cause:
        reason = "; ".join(line.strip() for line in str(cause).splitlines() if line.strip())
        raise ConfigError(f"Trinity refuses its configuration: {reason}", hint="see astune.trinity") from cause
    if not made.trainer.trainer_strategy.startswith("fsdp"):
        raise ConfigError(
            f"astune.trinity: trainer.trainer_strategy {made.trainer.trainer_strategy} cannot be used: astune's keys "
            "are passed to FSDP only",
            hint="leave it out, or set it to fsdp2; for Megatron use backbone verl, see docs/en/to_verl.md",
        )
    _require_pace(made, config)
    try:
        return made.check_and_update()
    except (ValueError, AssertionError, RuntimeError) as cause:
        raise ConfigError(f"Trinity refuses its configuration: {cause}", hint="see astune.trinity") from cause


def _require_pace(made: Config, config: AstuneConfig) -> None:
    """Check that `trainer.max_staleness` is supported."""
    style = made.synchronizer.sync_style
    if style not in (SyncStyle.FIXED, SyncStyle.FULLY_ASYNC):
        raise ConfigError(
            f"astune.trinity: synchronizer.sync_style {style.value} cannot be used: nothing bounds how old weights are",
            hint="leave it out, or set it to fully_async; trainer.max_staleness sets how far ahead episodes are run",
        )
    if style == SyncStyle.FIXED:
        return
    refused = (
        (not config.trainer.max_staleness, "runs episodes ahead", "set trainer.max_staleness to 1 or more"),
        (
            made.synchronizer.sync_method == SyncMethod.NCCL,
            "was not run with weights sent by NCCL",
            "set trinity.synchronizer.sync_method to checkpoint",
        ),
        (
            config.trainer.validation.stop_at_success is not None,
            "measures no held-out tasks",
            "leave trainer.validation.stop_at_success out, or sync_style",
        ),
    )
    for given, why, hint in refused:
        if given:
            raise ConfigError(f"astune.trinity: synchronizer.sync_style fully_async {why}", hint=hint)


def write_tasks(order: WorkOrder) -> None:
    """The tasks of the steps that are still to be done, and those to measure with, as Trinity's file storage."""
    _write(order.checkpoints / TASKS, order.training)
    if order.validation:
        _write(order.checkpoints / HELD_OUT, order.validation)


def _write(folder: Path, groups: Sequence[GroupToRun]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        orjson.dumps({"task": orjson.dumps(each.task).decode(), "first_repeat": each.first_repeat}) for each in groups
    ]
    (folder / "train.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def _of_this_run(order: WorkOrder) -> dict[str, Any]:
    config, folder = order.config, order.checkpoints
    trainer, rollout = config.trainer, config.rollout
    held_out = {"name": HELD_OUT, "storage_type": "file", "path": str(folder / HELD_OUT), "split": "train"}
    return {
        "checkpoint_root_dir": str(folder.parent),
        "name": folder.name,
        "ray_namespace": f"{folder}/{uuid4().hex}",  # other runs on the cluster have the same names
        "cluster.ray_address": ray_cluster.address(),
        "model.model_path": order.model_folder,
        **precision(config, servers="explorer.rollout_model.dtype", trainers=_FSDPS),
        "model.max_prompt_tokens": rollout.max_model_len - rollout.max_response_length_in_one_turn,
        **_patience(config, n_held_out=len(order.validation)),
        "buffer.total_steps": len(order.training) // trainer.tasks_per_step,
        "buffer.explorer_input.taskset": {
            "name": TASKS,
            "storage_type": "file",
            "path": str(folder / TASKS),
            "split": "train",
        },
        "buffer.explorer_input.eval_tasksets": [held_out] if order.validation else [],
        **{f"algorithm.{name}": value for name, value in algorithm_of(config, order.base_dir).items()},
        "algorithm.sample_strategy_args": {"groups": trainer.tasks_per_step},
        "explorer.runner_per_model": runners_per_model(config),
        "explorer.eval_on_startup": bool(order.validation) and order.first_step == 1,
    }


def _patience(config: AstuneConfig, *, n_held_out: int) -> dict[str, int]:
    """Trinity's timeouts: runners accept group after group, each with a time limit of astune."""
    in_turn = sum(ceil(n_groups / n_runners(config)) for n_groups in (config.trainer.tasks_per_step, n_held_out))
    within_s = in_turn * int(config.rollout.step_timeout_s) + 600
    waiting = ("explorer.max_timeout", "synchronizer.sync_timeout", f"{_EXPERIENCES}.max_read_timeout")
    return dict.fromkeys(waiting, within_s)


def algorithm_of(config: AstuneConfig, base_dir: Path | None) -> dict[str, Any]:
    """Trinity's section `algorithm`. The loss is rebuilt on its workers, from the parts of the configuration below.

    Args:
        base_dir: the folder of the YAML file, for an algorithm of the user's own.
    """
    loss, rollout = config.trainer.loss, config.rollout
    parts = {
        "trainer": {
            "algorithm": config.trainer.algorithm.model_dump(mode="json"),
            "loss": loss.model_dump(mode="json"),
        },
        "rollout": {
            "max_response_length_in_one_turn": rollout.max_response_length_in_one_turn,
            "max_model_len": rollout.max_model_len,
        },
    }
    entropy = {
        "entropy_loss_fn": f"{_ALGORITHM}.TokenEntropy",
        "entropy_loss_fn_args": {"entropy_coef": loss.entropy_coef},
    }
    return {
        "algorithm_type": f"{_ALGORITHM}.{'WeightedGroupsFromStart' if loss.kl_coef else 'WeightedGroups'}",
        "policy_loss_fn_args": {
            "config": orjson.dumps(parts).decode(),
            "base_dir": None if base_dir is None else str(base_dir),
        },
        **(entropy if loss.entropy_coef else {}),
    }


def _require_known(key: str, known: Mapping[str, Any], source: str) -> None:
    """Skip keys below an empty key, which Trinity checks."""
    free = {name for name, value in known.items() if value is None or value == {}}
    if not any(key == place or key.startswith(f"{place}.") for place in free):
        require_known(key, {*known, *(name.rpartition(".")[0] for name in known)}, source=source, engine="trinity")
