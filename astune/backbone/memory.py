"""Memory that a run needs, estimated from the model's sizes and the experiment before anything is loaded.

Sums of what the code keeps at once. What allocators, libraries and fragmentation add is one constant; nothing here was
measured on the machine at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.backbone.base import find_backbone
from astune.config.bases import Base
from astune.config.schema import AstuneConfig

GIB = 2**30
LIBRARIES = GIB
"""Python with torch and transformers, and a GPU's context."""
_PROCESS = 575 * 2**20
"""A run's process on a CPU without a model: Python with torch, transformers and an agent framework. Measured."""
_FREED = 1 << 27
"""Freed blocks on a CPU that a phase has not returned yet, for a training step as in `astune/trainer/recompute.py`."""
_LOGITS_AT_ONCE = 1 << 24
"""Elements of the local trainer's logits, which it makes a chunk at a time (`astune/trainer/head.py`)."""
_LOGITS_ON_GPU = 1 << 27
"""The same on a GPU, where a chunk is in float32 as well, whole."""
_OPTIMISER_BYTES = 12
"""A float32 gradient and AdamW's two moments."""
_MOMENTS_BYTES = 8
_FLOAT32, _BFLOAT16 = 4, 2
_INT8 = 1 + _BFLOAT16 / 32
"""A weight in 8 bits and its part of a scale, of which 32 have one."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder of attention and gated feed-forward layers; `queries` and `keys` are widths, all heads."""

    layers: int
    hidden: int
    intermediate: int
    queries: int
    keys: int
    vocabulary: int
    tied: bool
    published_in_bfloat16: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ModelShape | None:
        """The shape that a config.json describes; None for a model of another kind, as one with experts."""
        sizes = {**config, **(config.get("text_config") or {})}
        if any("expert" in name for name in sizes):
            return None
        try:
            heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
            width = sizes.get("head_dim") or hidden // heads
            return cls(
                layers=sizes["num_hidden_layers"],
                hidden=hidden,
                intermediate=sizes["intermediate_size"],
                queries=heads * width,
                keys=(sizes.get("num_key_value_heads") or heads) * width,
                vocabulary=sizes["vocab_size"],
                tied=sizes.get("tie_word_embeddings", False),
                published_in_bfloat16=(sizes.get("dtype") or sizes.get("torch_dtype")) == "bfloat16",
            )
        except KeyError:
            return None

    @property
    def parameters(self) -> int:
        """All weights; biases are left out."""
        layer = 2 * self.hidden * (self.queries + self.keys) + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.embeddings + self.layers * layer + self.hidden

    @property
    def embeddings(self) -> int:
        """Token embeddings and the head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapters(self, rank: int) -> int:
        """Weights of LoRA adapters beside each linear layer but the head."""
        attention = 2 * (self.hidden + self.queries) + 2 * (self.hidden + self.keys)
        return self.layers * rank * (attention + 3 * (self.hidden + self.intermediate))

    def activations(self, tokens: int) -> int:
        """Elements that a backward pass needs of a forward pass, without gradient checkpointing."""
        return tokens * self.layers * (4 * self.hidden + 3 * self.intermediate + 2 * (self.queries + self.keys))

    def local_activations(self, tokens: int) -> int:
        """The same in the local trainer, which makes norms and gated products again (`astune/trainer/recompute.py`)."""
        return self.activations(tokens) - tokens * self.layers * (2 * self.hidden + self.intermediate)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes at one `place`, by what they are for."""

    place: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def summary(self) -> str:
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in self.parts.items() if size >= 0.05 * GIB)
        return f"{self.total / GIB:.1f} GiB {self.place} ({parts})"


def estimates(config: AstuneConfig, shape: ModelShape, *, on_gpu: bool, in_bfloat16: bool) -> list[Estimate]:
    """Return the memory that the experiment's backbone needs on each of its devices.

    Args:
        on_gpu: whether the machines that train have GPUs.
        in_bfloat16: what the local backbone computes in.
    """
    return find_backbone(config.backbone).memory(config, shape, on_gpu=on_gpu, in_bfloat16=in_bfloat16)


def estimates_of(config: AstuneConfig) -> list[Estimate]:
    """The same for the model at `model.path` and this machine; nothing where the sizes are not known before a run."""
    from astune.engine.local.device import pick_device, pick_dtype

    shape = _shape_at(config.model.path)
    if shape is None or config.engine.type == "openai" or not all(_shape_at(base.path) for base in config.bases()):
        return []
    device = pick_device(config.model.device)
    in_bfloat16 = pick_dtype(config.model.dtype, device).itemsize == _BFLOAT16
    return estimates(config, shape, on_gpu=device.type == "cuda", in_bfloat16=in_bfloat16)


def _shape_at(path: str) -> ModelShape | None:
    from astune.engine.model_files import read_sizes

    return ModelShape.of(read_sizes(path) or {})


def _shapes(config: AstuneConfig, shape: ModelShape) -> list[tuple[Base, ModelShape]]:
    """The bases of a run with their sizes, where `shape` is that of `model.path`."""
    own = config.model.path
    return [(base, (None if base.path == own else _shape_at(base.path)) or shape) for base in config.bases()]


def engine_memory(config: AstuneConfig, shape: ModelShape, *, on_gpu: bool, in_bfloat16: bool) -> Estimate:
    """The engine in this process, without a trainer."""
    width = _BFLOAT16 if in_bfloat16 else _FLOAT32
    engines = [_engine(config, each, width, on_gpu, replaced=False) for _, each in _shapes(config, shape)]
    return Estimate(_place(on_gpu, in_bfloat16), {"libraries": _libraries(on_gpu), **_sums(engines)})


def local_memory(config: AstuneConfig, shape: ModelShape, *, on_gpu: bool, in_bfloat16: bool) -> Estimate:
    """Trainer and engine, which share one device and take turns: the larger of what either needs.

    Args:
        shape: that of the model at `model.path`; those that policies name are read from their config.json.
    """
    width = _BFLOAT16 if in_bfloat16 else _FLOAT32
    all_tokens = config.trainer.tasks_per_step * config.rollout.num_repeat * config.rollout.max_model_len
    tokens = min(config.trainer.tokens_per_microbatch, all_tokens)
    bases = _shapes(config, shape)
    phases = [_phases(config, base, each, width, on_gpu) for base, each in bases]
    always = {"libraries": _libraries(on_gpu), "freed blocks": 0 if on_gpu else _FREED}
    training = always | {
        **_sums([each for each, _ in phases]),
        "activations": max(each.local_activations(tokens) * width for base, each in bases if base.trained),
        "logits": _LOGITS_ON_GPU * (width + _FLOAT32) if on_gpu else _LOGITS_AT_ONCE * width,
    }
    sampling = always | _sums([each for _, each in phases])
    larger = max((training, "while it trains"), (sampling, "while episodes run"), key=lambda one: sum(one[0].values()))
    return Estimate(f"{_place(on_gpu, in_bfloat16)}, {larger[1]}", larger[0])


def _phases(
    config: AstuneConfig, base: Base, shape: ModelShape, width: int, on_gpu: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the bytes of a base while its policies train, and while episodes run."""
    whole = base.whole is not None
    trained = shape.parameters if whole else shape.adapters(sum(one.lora.rank for one in base.trained.values()))
    master_weights = trained * (_FLOAT32 if width < _FLOAT32 else 0)  # in float32 a weight is its own
    start = shape.parameters if config.trainer.loss.kl_coef > 0 and whole else 0
    replaced = whole or "" in base.trained  # the adapters of a run of one policy are merged
    engine = _engine(config, shape, width, on_gpu, replaced=replaced)
    copies = (shape.parameters + (0 if whole else trained)) * width + master_weights
    held: dict[str, float] = {"weights": copies if base.trained else 0, "starting weights": start * width}
    training = held | {"gradients and AdamW": trained * _OPTIMISER_BYTES}
    if on_gpu or not replaced:  # else the engine drops them meanwhile
        training |= {"engine": engine.get("engine", 0)}
    return training, held | {"AdamW": trained * _MOMENTS_BYTES, **engine}


def _sums(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """{"weights": 1}, {"weights": 2, "engine": 3}   ->   {"weights": 3, "engine": 3}"""
    return {name: sum(each.get(name, 0) for each in parts) for one in parts for name in one}


def _place(on_gpu: bool, in_bfloat16: bool) -> str:
    return f"on the {'GPU' if on_gpu else 'CPU'}, in {'bfloat16' if in_bfloat16 else 'float32'}"


def _libraries(on_gpu: bool) -> float:
    return LIBRARIES if on_gpu else _PROCESS


def _engine(config: AstuneConfig, shape: ModelShape, width: int, on_gpu: bool, *, replaced: bool) -> dict[str, float]:
    """The engine's own weights and cache, where it is in this process; a CPU's has a tied head twice.

    On a CPU linear layers of a model that was published in bfloat16 stay so, also where it computes in float32, until a
    step's weights replace them.

    The cache is bounded by the episodes of a step at their full length, each with keys and values of its own; on a CPU,
    where only what is written takes memory, at half of it.
    """
    if config.engine.type != "in_process":
        return {}
    looked_up, stays = shape.vocabulary * shape.hidden, shape.published_in_bfloat16 and not (on_gpu or replaced)
    multiplied = shape.parameters - (looked_up if on_gpu or not shape.tied else 0)
    in_int8 = config.engine.quantization == "int8"
    each = _INT8 if in_int8 else _BFLOAT16 if stays else width
    weights = looked_up * width + multiplied * each
    tokens = config.trainer.tasks_per_step * config.rollout.num_repeat * config.rollout.max_model_len
    written = tokens if on_gpu else tokens / 2
    budget = config.engine.kv_cache_gb * GIB / len(config.bases())
    cache = min(budget, 2 * shape.layers * shape.keys * written * width)
    return {"engine": weights, "keys and values": cache}


def colocated_memory(
    config: AstuneConfig, shape: ModelShape, *, devices: int, sampler_share: float, on_gpu: bool
) -> list[Estimate]:
    """FSDP2 spreads float32 weights, gradients and moments; vLLM sleeps on the same GPUs while they train.

    Args:
        sampler_share: part of a GPU that vLLM takes while it samples.
    """
    each = "on the GPU" if devices == 1 else f"on each of {devices} GPUs"
    taken = f"{each} while it samples, and vLLM takes {sampler_share:.0%} of the GPU for that"
    return _cluster_memory(config, shape, devices, (f"{each} while it trains", taken), on_gpu=on_gpu)


def separate_memory(config: AstuneConfig, shape: ModelShape, *, devices: int, on_gpu: bool) -> list[Estimate]:
    """The same where vLLM has GPUs of its own, beside `devices` of the trainer."""
    where = "on the trainer's GPU" if devices == 1 else f"on each of the trainer's {devices} GPUs"
    return _cluster_memory(config, shape, devices, (where, "on vLLM's GPU"), on_gpu=on_gpu)


def _cluster_memory(
    config: AstuneConfig, shape: ModelShape, devices: int, places: tuple[str, str], *, on_gpu: bool
) -> list[Estimate]:
    """Trainer and sampler, each at its place; without a GPU both are on this machine."""
    training = _cluster_trainer(config, shape, devices, on_gpu=on_gpu)
    sampling = _sampler(config, shape, on_gpu=on_gpu)
    if on_gpu:
        return [Estimate(places[0], training), Estimate(places[1], sampling)]
    return [Estimate("on this machine", training | {f"vLLM's {name}": size for name, size in sampling.items()})]


def _cluster_trainer(config: AstuneConfig, shape: ModelShape, devices: int, *, on_gpu: bool) -> dict[str, float]:
    """A device of verl's trainer, which Trinity trains with as well, as `default_config` sets it up."""
    rank = config.model.lora.rank
    trained = shape.adapters(rank) if rank else shape.parameters
    width = _BFLOAT16 if on_gpu else _FLOAT32
    tokens = max(config.trainer.tokens_per_microbatch, config.rollout.max_model_len)
    start = shape.parameters if config.trainer.loss.kl_coef > 0 and not rank else 0
    return {
        "libraries": LIBRARIES,
        "weights": (shape.parameters + (trained if rank else 0)) * _FLOAT32 / devices,
        "gathered weights": (shape.embeddings + (shape.parameters - shape.embeddings) / shape.layers) * width,
        "gradients and AdamW": trained * _OPTIMISER_BYTES / devices,
        "starting weights": start * _FLOAT32 / devices,
        "activations": shape.activations(tokens) * width,
        "logits": tokens * shape.vocabulary * (width + _FLOAT32),
    }


def _sampler(config: AstuneConfig, shape: ModelShape, *, on_gpu: bool) -> dict[str, float]:
    """A vLLM server with keys and values for half of the episodes at once at their full length."""
    width = _BFLOAT16 if on_gpu else _FLOAT32
    episodes = min(config.rollout.max_env_worker, config.trainer.tasks_per_step * config.rollout.num_repeat)
    keys_and_values = 2 * shape.layers * shape.keys * width * episodes * config.rollout.max_model_len / 2
    return {"libraries": LIBRARIES, "weights": shape.parameters * width, "keys and values": keys_and_values}
