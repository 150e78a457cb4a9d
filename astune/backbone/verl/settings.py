"""verl's configuration of a run: verl's defaults, ours, what follows from the user's keys, and the user's own of verl.

This runs in verl's environment, where its configuration files are.
"""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict

from astune.backbone.cluster import ray_cluster
from astune.backbone.cluster.layers import as_typed, layers_of, leaves, precision, require_kind, require_known
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
_OF_FSDP = (
    *(
        f"actor_rollout_ref.actor.{key}"
        for key in ("strategy", "optim.lr_scheduler_type", "optim.zero_indexed_step", "optim.min_lr_ratio")
    ),
    *(f"actor_rollout_ref.ref.fsdp_config.{key}" for key in ("model_dtype", "mixed_precision")),
)
"""What astune says of every run, and Megatron has other keys for."""
_OVERRIDDEN = "actor_rollout_ref.actor.optim.override_optimizer_config"
"""Megatron's optimizer takes its betas from here alone."""
_SEPARATE_ON_CPU = {
    "actor_rollout_ref.hybrid_engine": False,  # no second servers beside the trainer
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "gloo",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "astune.backbone.verl.gloo",
}
"""What servers of their own need where there is no GPU."""
_CPU_TOKENS = 1024
"""Of a micro-batch where there is no GPU: verl keeps all that a backward pass needs, 10 GB of 4,096 small tokens."""
_NOT_DECLARED = (
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "actor_rollout_ref.rollout.enable_sleep_mode",
)
"""Keys that verl reads, and its files leave out."""


def verl_config(job: Mapping[str, Any], *, on_cpu: bool) -> DictConfig:
    """What verl's `run_ppo` is called with.

    Raises:
        ConfigError: a key is none of the installed verl's.
    """
    config = AstuneConfig.model_validate(job["config"])
    model_engine = _leaf(config.verl, "model_engine") or _FSDP
    by_megatron = model_engine == _MEGATRON
    if by_megatron:
        _require_what_megatron_can(config, on_cpu=on_cpu)
    elif model_engine != _FSDP:
        raise ConfigError(
            f"astune.verl: model_engine {model_engine} cannot be used: astune's keys are told to FSDP and Megatron",
            hint=f"leave it out, or take {_MEGATRON}; actor_rollout_ref.actor.strategy is fsdp2, or fsdp",
        )
    with initialize_config_module("verl.trainer.config", version_base=None):
        theirs = compose("ppo_trainer", overrides=[f"model_engine={model_engine}"])
    keys = _Keys(theirs)
    own = _of_this_run(job, config, on_cpu=on_cpu) | (_of_megatron(config) if by_megatron else _of_fsdp(config))
    *layers, users = layers_of("verl", config, own, on_cpu=on_cpu)
    for source, values in layers:
        for key, value in values.items():
            if not (by_megatron and key in _OF_FSDP):
                keys.set(theirs, key, value, source)
    for key, value in users[1].items():
        keys.set(theirs, key, value, users[0])
    mode = theirs.trainer.v1.trainer_mode
    if mode not in MODES:
        raise ConfigError(f"astune.verl: verl has no trainer.v1.trainer_mode {mode}", hint=f"take one of {MODES}")
    if mode != SYNC and not config.trainer.max_staleness:
        raise ConfigError(
            f"astune.verl: trainer.v1.trainer_mode {mode} runs episodes ahead, and trainer.max_staleness is 0",
            hint="set trainer.max_staleness to 1 or more",
        )
    rollout = theirs.actor_rollout_ref.rollout
    if mode == SEPARATE and (not rollout.nnodes or rollout.checkpoint_engine.backend == "naive"):
        raise ConfigError(
            "astune.verl: trainer.v1.trainer_mode separate_async needs GPUs for its servers, and a way for weights",
            hint="set actor_rollout_ref.rollout.nnodes, n_gpus_per_node and checkpoint_engine.backend, as nccl",
        )
    if mode != SYNC:
        theirs.trainer.v1[mode].num_warmup_batches = config.trainer.max_staleness
        theirs.trainer.v1.sampler.custom_sampler = {
            "path": "pkg://astune.backbone.verl.sampler",
            "name": "GroupsOfStep",
        }
    theirs.trainer.v1.trainer_mode = PREFIX + mode
    return theirs


def _of_this_run(job: Mapping[str, Any], config: AstuneConfig, *, on_cpu: bool) -> dict[str, Any]:
    wanted = config.trainer.tokens_per_microbatch
    separate = _leaf(config.verl, "trainer.v1.trainer_mode") == SEPARATE
    return {
        **(_SEPARATE_ON_CPU if on_cpu and separate else {}),
        "trainer.v1.trainer_mode": COLOCATED if config.trainer.max_staleness else SYNC,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": max(
            min(wanted, _CPU_TOKENS) if on_cpu else wanted, config.rollout.max_model_len
        ),
        "actor_rollout_ref.actor.use_kl_loss": config.trainer.loss.kl_coef != 0,
        "actor_rollout_ref.actor.calculate_entropy": config.trainer.loss.entropy_coef != 0,
        "actor_rollout_ref.model.path": job["model_folder"],
        "algorithm.rollout_correction.rollout_is": "token" if config.trainer.loss.importance_cap is not None else None,
        "actor_rollout_ref.rollout.val_kwargs.temperature": config.validation_temperature,
        "data.val_batch_size": max(1, len(job["validation"])),
        "trainer.val_before_train": bool(job["validation"]) and _measures_first(job, config.trainer.test_freq),
        "trainer.test_freq": config.trainer.test_freq if job["validation"] else -1,
        **{f"ray_kwargs.ray_init.{name}": value for name, value in _ray(on_cpu=on_cpu).items()},
        "trainer.default_local_dir": job["checkpoints"],
        "trainer.resume_mode": "disable" if job["resume_from"] is None else "resume_path",
        "trainer.resume_from_path": job["resume_from"],
    }


def _of_fsdp(config: AstuneConfig) -> dict[str, Any]:
    return precision(config, servers="actor_rollout_ref.rollout.dtype", trainers=_FSDPS[:1])


def _of_megatron(config: AstuneConfig) -> dict[str, Any]:
    """Its learning rate is that of `astune.trainer.policy.learning_rate` at every step: it counts steps from 0."""
    optim, last = config.trainer.optim, config.trainer.total_steps - 1
    return {
        "actor_rollout_ref.actor.optim.lr_warmup_init": optim.lr / (optim.warmup_steps + 1),
        "actor_rollout_ref.actor.optim.lr_warmup_steps": optim.warmup_steps,
        "actor_rollout_ref.actor.optim.lr_decay_steps": max(last, optim.warmup_steps + 1),
        "actor_rollout_ref.actor.optim.lr_decay_style": "linear",
        "actor_rollout_ref.actor.optim.min_lr": optim.lr * optim.lr_final_ratio,
        **{f"{_OVERRIDDEN}.adam_beta{number}": beta for number, beta in enumerate(optim.betas, start=1)},
        "actor_rollout_ref.actor.entropy_from_logits_with_chunking": False,  # it cannot be differentiated there
    }


def _require_what_megatron_can(config: AstuneConfig, *, on_cpu: bool) -> None:
    refused = (
        (on_cpu, "it needs GPUs", "leave it out on a machine without one"),
        (config.model.lora.rank > 0, "verl tells it of adapters by other keys", "set model.lora.rank to 0"),
        (config.model.dtype == "float32", "it computes in bfloat16", "leave model.dtype at auto"),
    )
    for given, why, mend in refused:
        if given:
            raise ConfigError(f"astune.verl: model_engine megatron cannot be used: {why}", hint=mend)


def _measures_first(job: Mapping[str, Any], test_freq: int) -> bool:
    """At the beginning, and where a run goes on from a step that was saved and not measured."""
    done = job["first_step"] - 1
    return done % test_freq == 0 and job["measured"] < done


def _ray(*, on_cpu: bool) -> dict[str, Any]:
    own = {"include_dashboard": False} if ray_cluster.address() == ray_cluster.OWN else {}
    return {"address": ray_cluster.address(), **own, **ray_cluster.resources(on_cpu=on_cpu)}


def _leaf(tree: Mapping[str, Any], key: str) -> Any:
    return dict(leaves(tree)).get(key)


class _Keys:
    """Those that verl's own configuration has, before anything is set in it."""

    def __init__(self, theirs: DictConfig) -> None:
        self._defaults = dict(leaves(OmegaConf.to_container(theirs, resolve=False)))  # type: ignore[arg-type]
        sections = {name.rpartition(".")[0] for name in self._defaults}
        self._known = {*self._defaults, *sections}
        self._sections = {section for section in sections if section}
        empty = [name for name, value in self._defaults.items() if value is None or value == {}]
        self._open = tuple(f"{place}." for place in (*_OPEN, *_NOT_DECLARED, *empty))

    def set(self, theirs: DictConfig, key: str, value: Any, source: str) -> None:
        free = f"{key}.".startswith(self._open)
        if not free:
            require_known(key, self._known, source=source, engine="verl")
            require_kind(key, value, self._defaults.get(key), source=source, engine="verl")
        if key in self._sections and value not in (None, {}):
            raise ConfigError(f"{source}: {key} is a section of verl's; found {value!r}", hint="name keys below it")
        with open_dict(theirs):
            OmegaConf.update(theirs, key, as_typed(value, self._defaults.get(key)), force_add=free)
