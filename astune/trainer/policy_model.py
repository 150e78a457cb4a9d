"""The model being trained: a compute copy that reads micro-batches, and the float32 master weights behind it.

Any transformers causal LM whose logits are a linear map of its last hidden states will do. Where its layers go through
the attention interface it computes prefix trees; `PolicyModel.load` finds out.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from astune.config.bases import Base
from astune.config.schema import ModelConfig
from astune.engine.adapters import initial_adapter
from astune.engine.local.allocator import set_up_cpu_memory
from astune.engine.local.device import pick_device, pick_dtype
from astune.engine.whole_model import load_causal_lm, without_gaps
from astune.schema import TrainerError
from astune.trainer._fast_layers import use_fast_layers
from astune.trainer._probe import prepare
from astune.trainer.attention import attending
from astune.trainer.checkpoint import save_weights
from astune.trainer.engine_forward import EngineForward, Within
from astune.trainer.head import Head
from astune.trainer.lora import (
    ALONE,
    activate,
    add_adapters,
    begin_with,
    inner_name,
    merged_tensors,
    of_adapter,
    saved_tensors,
    scale_of,
    without_adapters,
)
from astune.trainer.master_weights import MasterWeights
from astune.trainer.microbatch import MicroBatch
from astune.trainer.recompute import Recomputing, layers_recomputed

_SMALL = 1 << 16
"""Values up to which `PolicyModel.origin` reads a tensor whole."""


class PolicyModel:
    """Compute copy with its master weights. If `takes_trees` is False, a micro-batch must hold a single timeline."""

    def __init__(
        self,
        module: nn.Module,
        *,
        dtype: torch.dtype,
        device: torch.device,
        lora: bool,
        takes_trees: bool,
        adapter: str = ALONE,
    ) -> None:
        self.module = module
        self.takes_trees = takes_trees
        self.dtype = dtype
        self.device = device
        self.lora = lora
        self.adapter = adapter
        self.master_weights = MasterWeights(module, dtype, leaves=self._is_of_another_adapter)
        self.tokens_kept: int | None = None
        """Tokens of a micro-batch whose activations are kept; of a larger one most are computed again."""
        self._engine_forward: EngineForward | None = None
        self._start: PolicyModel | None = None
        if device.type == "cpu":
            set_up_cpu_memory()

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, *, seed: int) -> PolicyModel:
        device = pick_device(config.device)
        module = _loaded(folder, device)
        if config.lora.rank > 0:
            module = add_adapters(module, config.lora, seed=seed)
        lora = config.lora.rank > 0
        takes_trees = prepare(cast(Any, module).get_base_model() if lora else module)
        dtype = pick_dtype(config.dtype, device)
        return cls(module, dtype=dtype, device=device, lora=lora, takes_trees=takes_trees)

    @classmethod
    def on_base(cls, base: Base, folder: Path, config: ModelConfig, *, seed: int) -> dict[str, PolicyModel]:
        """The trained policies of a base, on one copy of its model; each computes after `activate`, until another one
        does.

        Args:
            folder: the folder of the base.

        Raises:
            ConfigError: an adapter's start does not fit it.
        """
        if base.whole is not None:
            return {base.whole: cls.load(folder, config, seed=seed)}
        device = pick_device(config.device)
        dtype, module = pick_dtype(config.dtype, device), _loaded(folder, device)
        for name, policy in base.trained.items():
            module = add_adapters(module, policy.lora, seed=seed, name=inner_name(name))
        for name, policy in base.trained.items():
            if policy.start is not None:
                begin_with(module, name, initial_adapter(name, policy.start))
        takes_trees = prepare(cast(Any, module).get_base_model())
        models: dict[str, PolicyModel] = {}
        for name in base.trained:
            inner = inner_name(name)
            activate(module, inner)
            models[name] = cls(module, dtype=dtype, device=device, lora=True, takes_trees=takes_trees, adapter=inner)
        return models

    def activate(self) -> None:
        """Make its adapter the one that computes and is trained, among several on the same module."""
        if self.lora:
            activate(self.module, self.adapter)

    def _is_of_another_adapter(self, parameter: str) -> bool:
        return self.lora and ".lora_" in parameter and not of_adapter(parameter, self.adapter)

    def compute_as_engine(self) -> bool:
        """Compute log-probabilities by the in-process engine's operations from now on; returns whether that can be."""
        self._engine_forward = EngineForward.of(self)
        return self._engine_forward is not None

    def keep_start(self) -> None:
        """Remember the present weights for `reference_logprobs`, which computes as this model does now; adapters need
        no copy, they are switched off."""
        start = copy.copy(self) if self.lora else self.frozen()
        start._engine_forward = self._engine_forward
        self._start = start

    def frozen(self, dtype: torch.dtype | None = None) -> PolicyModel:
        """A copy that computes with the present weights whatever becomes of these, by the model's own operations, in
        `dtype` where one is given."""
        frozen = copy.copy(self)
        frozen._engine_forward = None
        frozen.dtype = dtype or self.dtype
        frozen.module = copy.deepcopy(self.module).requires_grad_(False)
        use_fast_layers(frozen.module)  # those it copied still compute with this module's weights
        for parameter in frozen.module.parameters():  # buffers, such as rotary frequencies, stay float32
            parameter.data = parameter.data.to(frozen.dtype)
        return frozen

    def hidden(self, batch: MicroBatch) -> Tensor:
        """The last hidden states [R, D] from which the micro-batch's trained tokens are predicted."""
        inputs: dict[str, Any] = {"input_ids": batch.token_ids_T[None], "use_cache": False}
        if self.takes_trees:
            inputs["position_ids"] = batch.position_ids_T[None]
        within = partial(attending, batch.plan) if self.takes_trees else nullcontext
        with within(), self._computing(batch, within):
            output = self.causal_lm.base_model(**inputs)
        return output.last_hidden_state[0].index_select(0, batch.row_R)

    def _computing(self, batch: MicroBatch, within: Within) -> AbstractContextManager[Any]:
        """Context in which layers compute, and keep what the backward pass needs."""
        if self._engine_forward is not None:
            return self._engine_forward.computing(self, batch, within)
        is_long = self.tokens_kept is not None and len(batch.token_ids_T) > self.tokens_kept
        is_long = is_long and torch.is_grad_enabled()  # else nothing is kept anyway
        return layers_recomputed(self.causal_lm, within) if is_long else Recomputing()

    def head(self, temperature: float) -> Head:
        linear = self._output_layer
        return Head(
            weight_VD=linear.weight,
            bias_V=linear.bias,
            temperature=temperature,
            weight_grad_VD=self.master_weights.gradient_of(linear.weight),
            bias_grad_V=self.master_weights.gradient_of(linear.bias) if linear.bias is not None else None,
            product=partial(self._engine_forward.logits, self) if self._engine_forward is not None else None,
        )

    @torch.no_grad()
    def logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """The log-probability [E] of each trained token under the present weights."""
        return self.head(temperature).logprobs(self.hidden(batch), batch.targets)

    @torch.no_grad()
    def reference_logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """The same under the weights at `keep_start`."""
        if self._start is None:
            raise TrainerError("the starting weights were not kept", hint="this is a defect of astune")
        with without_adapters(self.module) if self.lora else nullcontext():
            return self._start.logprobs(batch, temperature)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by its Hugging Face name, adapters merged; of tied weights the one that is saved."""
        return merged_tensors(self.module, self.adapter) if self.lora else saved_tensors(self.module)

    @torch.no_grad()
    def origin(self) -> dict[str, float]:
        """Names of the start that a state fits, beside its shapes: a CRC-32 over the base's small tensors, such as
        norms, and a hundredth of its other weights, and the adapter's scale."""
        crc = 0
        for name, tensor in saved_tensors(self.causal_lm):
            if ".lora_" not in name:
                every = 1 if tensor.numel() <= _SMALL else 101
                part = tensor.flatten()[::every].to("cpu", torch.bfloat16).contiguous()  # alike in every compute format
                crc = zlib.crc32(part.view(torch.int16).numpy().tobytes(), crc)
        scale = {"scale of the adapters": scale_of(self.module, self.adapter)} if self.lora else {}
        return {"starting model": crc, **scale}

    def save(self, folder: Path) -> None:
        """Write config and weights in Hugging Face format, in the dtype that they compute in."""
        save_weights(folder, self.causal_lm, self.named_tensors(), self.dtype)

    @property
    def causal_lm(self) -> Any:
        return cast(Any, self.module).get_base_model() if self.lora else self.module

    @property
    def vocab_size(self) -> int:
        """The width of the logits."""
        return self._output_layer.weight.shape[0]

    @property
    def _output_layer(self) -> nn.Linear:
        return self.causal_lm.get_output_embeddings()


def _loaded(folder: Path, device: torch.device) -> nn.Module:
    loaded = load_causal_lm(folder, torch.float32, error=TrainerError)
    return cast(nn.Module, without_gaps(loaded)).to(device).eval()
