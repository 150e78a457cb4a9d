"""Settings of verl with Megatron (`model_engine: megatron`), which has its own optimizer keys."""

from __future__ import annotations

from typing import Any

from astune.config.schema import AstuneConfig
from astune.schema import ConfigError

_ACTOR = "actor_rollout_ref.actor"
FOR_FSDP = (
    *(
        f"{_ACTOR}.{key}"
        for key in ("strategy", "optim.lr_scheduler_type", "optim.zero_indexed_step", "optim.min_lr_ratio")
    ),
    *(f"actor_rollout_ref.ref.fsdp_config.{key}" for key in ("model_dtype", "mixed_precision")),
)
"""Keys that astune tells FSDP in every run, and Megatron does not have."""


def keys_of(config: AstuneConfig) -> dict[str, Any]:
    """Keys of Megatron's optimiser: the rates of `astune.trainer.policy.learning_rate`, by steps counted from 0."""
    optim, last = config.trainer.optim, config.trainer.total_steps - 1
    optimiser = {
        "lr_warmup_init": optim.lr / (optim.warmup_steps + 1),
        "lr_warmup_steps": optim.warmup_steps,
        "lr_decay_steps": max(last, optim.warmup_steps + 1),
        "lr_decay_style": "linear",
        "min_lr": optim.lr * optim.lr_final_ratio,
        # verl does not pass its own `betas` on
        **{f"override_optimizer_config.adam_beta{number}": beta for number, beta in enumerate(optim.betas, start=1)},
    }
    chunks = {f"{_ACTOR}.entropy_from_logits_with_chunking": False}  # it cannot be differentiated there
    return {f"{_ACTOR}.optim.{key}": value for key, value in optimiser.items()} | chunks


def require_trainable(config: AstuneConfig, *, on_cpu: bool) -> None:
    """Raises ConfigError where the configuration asks for what Megatron, or verl with it, does not do."""
    refused = (
        (on_cpu, "it needs GPUs", "leave it out on a machine without one"),
        (config.model.lora.rank > 0, "verl passes it adapters by other keys", "set model.lora.rank to 0"),
        (config.model.dtype == "float32", "it computes in bfloat16", "leave model.dtype at auto"),
    )
    for given, why, hint in refused:
        if given:
            raise ConfigError(f"astune.verl: model_engine megatron cannot be used: {why}", hint=hint)
