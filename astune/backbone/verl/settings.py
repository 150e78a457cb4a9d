"""verl's configuration of a run: verl's defaults, ours, what follows from the user's keys, and the user's own of verl.

This runs in verl's environment, where its configuration files are.
"""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict

from astune.algorithm import ClippedAlgorithm, load_algorithm
from astune.backbone.cluster import ray_cluster
from astune.backbone.cluster.layers import as_typed, layers_of, leaves, of_user, precision, require_kind, require_known
from astune.backbone.cluster.work_order import WorkOrder
from astune.backbone.verl import megatron
from astune.backbone.verl.names import COLOCATED, MODES, PREFIX, SEPARATE, SYNC
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError

_FSDPS = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config")
_OPEN = (
    "actor_rollout_ref.model.override_config",
    *(f"{place}.mixed_precision" for place in _FSDPS),
    "actor_rollout_ref.rollout.engine_kwargs",
    "ray_kwargs.ray_init",
)
"""Below these verl passes on whatever it is given."""
_FSDP, _MEGATRON = "dp", "megatron"
"""verl's words for who trains."""
_SEPARATE = {"actor_rollout_ref.hybrid_engine": False}
"""No second servers beside the trainer, which nobody would watch."""
_SEPARATE_ON_CPU = {
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "gloo",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "astune.backbone.cpu_clusters.verl_gloo",
}
"""Settings of separate servers without a GPU."""
_CPU_TOKENS = 1024
"""Tokens of a micro-batch without a GPU: verl keeps all that a backward pass needs, 10 GB of 4,096 small tokens."""
_NOT_DECLARED = (
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "actor_rollout_ref.rollout.enable_sleep_mode",
)
"""Keys that verl reads, and its files leave out."""


def verl_config(order: WorkOrder, *, on_cpu: bool) -> DictConfig:
    """Build the configuration of verl's `run_ppo`.

    Raises:
        ConfigError: a key is none of the installed verl's.
    """
    config = order.config
    model_engine = _model_engine(config, on_cpu=on_cpu)
    with initialize_config_module("verl.trainer.config", version_base=None):
        composed = compose("ppo_trainer", overrides=[f"model_engine={model_engine}"])
    keys, own = _Keys(composed), _of_this_run(order, on_cpu=on_cpu)
    left_out = megatron.FOR_FSDP if model_engine == _MEGATRON else ()
    *layers, users = layers_of("verl", config, own | _of_trainer(config, model_engine), on_cpu=on_cpu)
    for source, values in layers:
        keys.set(composed, {key: value for key, value in values.items() if key not in left_out}, source)
    keys.set(composed, users[1], users[0])
    _set_pace(composed, config)
    return composed


def _model_engine(config: AstuneConfig, *, on_cpu: bool) -> str:
    """The `model_engine` that trains: FSDP, or Megatron where the user asks for it."""
    asked = of_user(config, "verl", "model_engine") or _FSDP
    if asked == _MEGATRON:
        megatron.require_trainable(config, on_cpu=on_cpu)
    elif asked != _FSDP:
        raise ConfigError(
            f"astune.verl: model_engine {asked} cannot be used: astune's keys are passed to FSDP and Megatron only",
            hint=f"leave it out, or take {_MEGATRON}; actor_rollout_ref.actor.strategy is fsdp2, or fsdp",
        )
    return asked


def _of_trainer(config: AstuneConfig, model_engine: str) -> dict[str, Any]:
    if model_engine == _MEGATRON:
        return megatron.keys_of(config)
    return precision(config, servers="actor_rollout_ref.rollout.dtype", trainers=_FSDPS[:1])  # the other one follows


def _set_pace(composed: DictConfig, config: AstuneConfig) -> None:
    """Have the mode of verl's trainer run as far ahead as `trainer.max_staleness` says."""
    pace, rollout = composed.trainer.v1, composed.actor_rollout_ref.rollout
    mode = pace.trainer_mode
    if mode not in MODES:
        raise ConfigError(f"astune.verl: verl has no trainer.v1.trainer_mode {mode}", hint=f"take one of {MODES}")
    if mode != SYNC and not config.trainer.max_staleness:
        raise ConfigError(
            f"astune.verl: trainer.v1.trainer_mode {mode} runs episodes ahead, and trainer.max_staleness is 0",
            hint="set trainer.max_staleness to 1 or more",
        )
    if mode == SEPARATE and (not rollout.nnodes or rollout.checkpoint_engine.backend == "naive"):
        raise ConfigError(
            "astune.verl: trainer.v1.trainer_mode separate_async needs GPUs for its servers, and a way for weights",
            hint="set actor_rollout_ref.rollout.nnodes, n_gpus_per_node and checkpoint_engine.backend, as nccl",
        )
    if mode != SYNC:
        pace[mode].num_warmup_batches = config.trainer.max_staleness
        pace.sampler.custom_sampler = {"path": "pkg://astune.backbone.verl.sampler", "name": "GroupsOfStep"}
    pace.trainer_mode = PREFIX + mode


def _of_this_run(order: WorkOrder, *, on_cpu: bool) -> dict[str, Any]:
    config = order.config
    wanted = config.trainer.tokens_per_microbatch
    separate = of_user(config, "verl", "trainer.v1.trainer_mode") == SEPARATE
    return {
        **(_SEPARATE if separate else {}),
        **(_SEPARATE_ON_CPU if on_cpu and separate else {}),
        "trainer.v1.trainer_mode": COLOCATED if config.trainer.max_staleness else SYNC,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": max(
            min(wanted, _CPU_TOKENS) if on_cpu else wanted, config.rollout.max_model_len
        ),
        **clip_ratios(config, order.base_dir),
        "actor_rollout_ref.actor.use_kl_loss": config.trainer.loss.kl_coef != 0,
        "actor_rollout_ref.actor.calculate_entropy": config.trainer.loss.entropy_coef != 0,
        "actor_rollout_ref.model.path": order.model_folder,
        "algorithm.rollout_correction.rollout_is": "token" if config.trainer.loss.importance_cap is not None else None,
        "actor_rollout_ref.rollout.val_kwargs.temperature": config.validation_temperature,
        "data.val_batch_size": max(1, len(order.validation)),
        "trainer.val_before_train": _measures_first(order),
        "trainer.test_freq": config.trainer.test_freq if order.validation else -1,
        **{f"ray_kwargs.ray_init.{name}": value for name, value in _ray(on_cpu=on_cpu).items()},
        "trainer.default_local_dir": str(order.checkpoints),
        "trainer.resume_mode": "disable" if order.resume_from is None else "resume_path",
        "trainer.resume_from_path": order.resume_from,
    }


def clip_ratios(config: AstuneConfig, base_dir: Path | None = None) -> dict[str, float]:
    """The algorithm's limits of the ratio, by verl's names."""
    algorithm = load_algorithm(config, base_dir)
    if not isinstance(algorithm, ClippedAlgorithm):
        raise ConfigError(f"trainer.algorithm: verl has no loss for {config.trainer.algorithm.type}")
    low, high = algorithm.clip_low, algorithm.clip_high
    actor = "actor_rollout_ref.actor"
    return {f"{actor}.clip_ratio": low, f"{actor}.clip_ratio_low": low, f"{actor}.clip_ratio_high": high}


def _measures_first(order: WorkOrder) -> bool:
    """Measure before training, and at a resume from a step that was saved and not measured."""
    return order.done in order.measured_steps and order.measured < order.done


def _ray(*, on_cpu: bool) -> dict[str, Any]:
    own = {"include_dashboard": False} if ray_cluster.address() == ray_cluster.OWN else {}
    return {"address": ray_cluster.address(), **own, **ray_cluster.resources(on_cpu=on_cpu)}


class _Keys:
    """The keys that verl's own configuration has, before anything is set in it."""

    def __init__(self, composed: DictConfig) -> None:
        self._defaults = dict(leaves(OmegaConf.to_container(composed, resolve=False)))  # type: ignore[arg-type]
        sections = {name.rpartition(".")[0] for name in self._defaults}
        self._known = {*self._defaults, *sections}
        self._sections = {section for section in sections if section}
        empty = [name for name, value in self._defaults.items() if value is None or value == {}]
        self._open = tuple(f"{place}." for place in (*_OPEN, *_NOT_DECLARED, *empty))

    def set(self, composed: DictConfig, values: Mapping[str, Any], source: str) -> None:
        """Raises ConfigError, with the source, where verl has no such key, or it is one of another kind."""
        for key, value in values.items():
            self._set(composed, key, value, source)

    def _set(self, composed: DictConfig, key: str, value: Any, source: str) -> None:
        free = f"{key}.".startswith(self._open)
        if not free:
            require_known(key, self._known, source=source, engine="verl")
            require_kind(key, value, self._defaults.get(key), source=source, engine="verl")
        if key in self._sections and value != {}:
            raise ConfigError(f"{source}: {key} is a section of verl's; found {value!r}", hint="name keys below it")
        with open_dict(composed):
            OmegaConf.update(composed, key, as_typed(value, self._defaults.get(key)), force_add=free)
