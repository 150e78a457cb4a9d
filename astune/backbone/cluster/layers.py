"""An engine's configuration from layers, later ones winning: ours, what follows from the user's keys, the user's own.

Keys are dotted, and the engine's; one that it does not have is refused with the nearest one that it has.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from astune.config.key_map import engine_values, read_key_map
from astune.config.loader import DEFAULT_YAML
from astune.config.schema import AstuneConfig, ClusterEngine
from astune.schema import ConfigError

Layers = list[tuple[str, dict[str, Any]]]
"""Configuration layers: where each comes from, and its keys with their values."""


_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
_SAMPLING = ("temperature", "top_p", "top_k")
_LENGTHS = (
    "enable_prompt_truncation",
    "max_model_len",
    "max_prompt_tokens",
    "max_response_tokens",
    "min_response_tokens",
)


def _under(section: str, *names: str) -> list[str]:
    return [f"{section}.{name}" for name in names]


_KEPT: dict[ClusterEngine, tuple[str, ...]] = {
    "verl": (
        *_under("algorithm", "adv_estimator", "filter_groups", "rollout_correction", "use_kl_in_reward"),
        *("distillation.enabled", "reward.reward_model.enable"),
        *_under("data", "train_batch_size", "gen_batch_size", "val_batch_size", "max_prompt_length"),
        *_under("data", "max_response_length", "train_files", "val_files", "custom_cls", "shuffle"),
        *_under(_ACTOR, "loss_agg_mode", "use_kl_loss", "kl_loss_coef", "calculate_entropy", "entropy_coeff"),
        *_under(_ACTOR, "ppo_epochs", "ppo_mini_batch_size", "policy_loss"),
        *_under(_ACTOR, "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"),
        *_under(f"{_ACTOR}.checkpoint", "async_save", "save_contents", "load_contents"),
        *_under("actor_rollout_ref", "hybrid_engine", "model.path", "model.lora_rank", "model.lora_alpha"),
        *_under("actor_rollout_ref.model", "lora_adapter_path", "lora.rank", "lora.alpha", "mtp"),
        *_under(_ROLLOUT, "mtp", "name", "max_model_len", "n", *_SAMPLING, "logprobs_mode", "calculate_log_probs"),
        *_under(_ROLLOUT, "agent.agent_loop_manager_class"),
        *_under("trainer", "critic_warmup", "default_local_dir", "resume_from_path", "resume_mode"),
        *_under("trainer", "del_local_ckpt_after_load", "max_actor_ckpt_to_keep"),
        *_under("trainer", "test_freq", "val_before_train", "total_epochs", "total_training_steps", "use_v1"),
        *_under("trainer.v1", "sampler", "colocate_async.num_warmup_batches"),
        *_under("trainer.v1.separate_async", "num_warmup_batches", "parameter_sync_step"),
    ),
    "trinity": (
        *("mode", "checkpoint_root_dir", "project", "name", "ray_namespace", "buffer"),
        *_under("algorithm", "algorithm_type", "advantage_fn", "policy_loss_fn", "policy_loss_fn_args"),
        *_under("algorithm", "sample_strategy", "sample_strategy_args", "kl_loss_fn", "kl_penalty_fn"),
        *_under("algorithm", "entropy_loss_fn", "entropy_loss_fn_args", "repeat_times", "bypass_old_logprobs"),
        *_under("model", "model_path", "lora_configs", *_LENGTHS, *_SAMPLING),
        *_under("explorer", "max_inflight_batches", "max_retry_times", "runner_per_model"),
        *_under("explorer.rollout_model", *_LENGTHS, *_SAMPLING),
        *_under("synchronizer", "sync_interval", "sync_offset", "explorer_sync_interval", "trainer_sync_interval"),
        *_under("trainer", "critic_warmup", "max_checkpoints_to_keep", "save_hf_checkpoint", "total_steps"),
        *_under(f"trainer.trainer_config.{_ACTOR}", "ppo_epochs", "ppo_mini_batch_size", "policy_loss"),
    ),
}
"""Settings on which law 4's loss, the token accounting and a resume rest."""
_SHORT = {"float32": "fp32", "bfloat16": "bf16"}
"""verl's names."""


def layers_of(engine: ClusterEngine, config: AstuneConfig, own: Mapping[str, Any], *, on_cpu: bool) -> Layers:
    """All of them; `own` is what follows from the run."""
    users, key_map = _users(config, engine), read_key_map(engine)
    for key in users:
        if any(f"{key}.".startswith(f"{kept}.") for kept in _KEPT[engine]):
            own_keys = [own_key for own_key, engine_keys in key_map.items() if key in engine_keys]
            raise ConfigError(
                f"astune.{engine}: {key} is set by astune: the loss, token accounting or a resume depends on it",
                hint=f"it follows from {own_keys[0]}" if own_keys else "leave it out; see docs/en/backbones.md",
            )
    places = Path(DEFAULT_YAML).parent
    files = [f"{engine}_default.yaml", *([f"{engine}_cpu.yaml"] if on_cpu else [])]
    layers: Layers = [
        *(
            (f"default_config/{name}", dict(leaves(yaml.safe_load((places / name).read_text())[engine])))
            for name in files
        ),
        (f"config_auto_convertion_{engine}.json", engine_values(config, key_map)),
        ("astune's own", dict(own)),
    ]
    _require_sections(users, layers, engine)
    return [*layers, (f"astune.{engine}", users)]


def _require_sections(users: Mapping[str, Any], layers: Layers, engine: ClusterEngine) -> None:
    """Check that no section is replaced by one value, and all that was set in it lost with it."""
    for key, value in users.items():
        if value != {} and any(set_key.startswith(f"{key}.") for _, values in layers for set_key in values):
            raise ConfigError(
                f"astune.{engine}: {key} is a section of {engine}'s; found {value!r}",
                hint="name keys below it, or leave it out",
            )


def of_user(config: AstuneConfig, engine: ClusterEngine, key: str, default: Any = None) -> Any:
    """Return the user's own value of an engine's key."""
    return _users(config, engine).get(key, default)


def precision(config: AstuneConfig, *, servers: str, trainers: Sequence[str]) -> dict[str, Any]:
    """Settings that follow from `model.dtype`, the data type of matrix products; empty for auto.

    Args:
        servers: the engine's key for those who sample.
        trainers: its keys for verl's FSDP of the models that are trained, or compared with.
    """
    dtype = config.model.dtype
    if dtype == "auto":
        return {}
    mixed = {"param_dtype": _SHORT[dtype], "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    formats = {f"{key}.mixed_precision.{name}": value for key in trainers for name, value in mixed.items()}
    return {servers: dtype, **formats}


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; a list is a value."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def require_known(key: str, known: Collection[str], *, source: str, engine: ClusterEngine) -> None:
    """Raises ConfigError, with the nearest key, where the engine has none of that name."""
    if key in known:
        return
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{source}: {engine} has no key {key}{meant}", hint=f"keys are those of the installed {engine}")


def require_kind(key: str, value: Any, default: Any, *, source: str, engine: ClusterEngine) -> None:
    """Raises ConfigError where the engine has a number, and is given none."""
    number = isinstance(default, int | float) and not isinstance(default, bool)
    if number and value is not None and not isinstance(value, int | float) and not str(value).startswith("${"):
        raise ConfigError(
            f"{source}: {engine} has a number at {key}, as {default}; found {value!r}", hint="give it one"
        )


def as_typed(value: Any, default: Any) -> Any:
    """The value, a whole number where the engine's default is one: engines are strict about that."""
    whole = isinstance(default, int) and isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def _users(config: AstuneConfig, engine: ClusterEngine) -> dict[str, Any]:
    return dict(leaves(getattr(config, engine)))
