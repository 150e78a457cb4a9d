"""The model being trained: a compute copy that runs prefix trees, and the float32 masters behind it.

Any transformers causal LM whose layers use the attention interface and whose logits are a linear map of its last
hidden states will do; `PolicyModel.load` checks the model at hand against its own plain forward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from astune.config.schema import ModelConfig
from astune.engine.allocator import keep_freed_memory
from astune.engine.device import pick_device, pick_dtype
from astune.schema import TrainerError
from astune.trainer._fast_layers import use_fast_layers
from astune.trainer.attention import TREE_ATTENTION, attending
from astune.trainer.attention_plan import plan_attention
from astune.trainer.head import Head
from astune.trainer.lora import add_adapters, merged_tensors, without_adapters
from astune.trainer.masters import Masters
from astune.trainer.microbatch import MicroBatch
from astune.trainer.trie import build_tree


class PolicyModel:
    """`module` computes in `dtype`; what is trained of it has a master in `masters`."""

    def __init__(self, module: nn.Module, *, dtype: torch.dtype, device: torch.device, lora: bool) -> None:
        self.module = module
        self.dtype = dtype
        self.device = device
        self.lora = lora
        self.masters = Masters(module, dtype)
        self._start: PolicyModel | None = None
        if device.type == "cpu":
            keep_freed_memory()

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, *, seed: int) -> PolicyModel:
        from transformers import AutoModelForCausalLM

        device = pick_device(config.device)
        dtype = pick_dtype(config.dtype, device)
        module = cast(nn.Module, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)).to(device).eval()
        if config.lora.rank > 0:
            module = add_adapters(module, config.lora, seed=seed)
        model = cls(module, dtype=dtype, device=device, lora=config.lora.rank > 0)
        model._use_trees()
        return model

    def keep_start(self) -> None:
        """Remember the present weights for `start_logprobs`; adapters need no copy, they are switched off."""
        if self.lora:
            self._start = self
            return
        frozen = copy.copy(self)
        frozen.module = copy.deepcopy(self.module).requires_grad_(False)
        use_fast_layers(frozen.module)  # those it copied still compute with this module's weights
        self._start = frozen

    def hidden(self, batch: MicroBatch) -> Tensor:
        """The last hidden states [R, D] from which the micro-batch's trained tokens are predicted."""
        with attending(batch.plan):
            output = self.causal_lm.base_model(
                input_ids=batch.token_ids_T[None], position_ids=batch.position_ids_T[None], use_cache=False
            )
        return output.last_hidden_state[0].index_select(0, batch.row_R)

    def head(self, temperature: float) -> Head:
        linear = self._output_layer
        return Head(
            weight_VD=linear.weight,
            bias_V=linear.bias,
            temperature=temperature,
            weight_grad_VD=self.masters.gradient_of(linear.weight),
            bias_grad_V=self.masters.gradient_of(linear.bias) if linear.bias is not None else None,
        )

    @torch.no_grad()
    def logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """The log-probability [E] of each trained token under the present weights."""
        return self.head(temperature).logprobs(self.hidden(batch), batch.targets)

    @torch.no_grad()
    def start_logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """The same under the weights at `keep_start`."""
        if self._start is None:
            raise TrainerError("the starting weights were not kept", hint="this is a defect of astune")
        with without_adapters(self.module) if self.lora else nullcontext():
            return self._start.logprobs(batch, temperature)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by its Hugging Face name, adapters merged; of tied weights the one that is saved."""
        if self.lora:
            yield from merged_tensors(self.module)
            return
        tied = set(getattr(self.module, "all_tied_weights_keys", {}))
        for name, tensor in self.module.state_dict().items():
            if name not in tied:
                yield name, tensor

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

    @torch.no_grad()
    def _use_trees(self) -> None:
        """Switch to tree attention and fast layers, then compare a small tree with the model's own forward pass."""
        vocabulary = self._output_layer.weight.shape[0]
        ids = torch.arange(12).mul_(7919).remainder_(vocabulary).tolist()
        sequences = [ids[:5] + ids[5:8], ids[:5] + ids[8:12]]
        plain = [
            self.module(input_ids=torch.tensor([sequence], device=self.device), use_cache=False).logits[0]
            for sequence in sequences
        ]
        use_fast_layers(self.causal_lm)
        self.causal_lm.set_attn_implementation(TREE_ATTENTION)
        tree = build_tree(sequences)
        with attending(plan_attention(tree, self.device)):
            output = self.causal_lm.base_model(
                input_ids=torch.from_numpy(tree.token_ids).to(self.device)[None],
                position_ids=torch.from_numpy(tree.position_ids).to(self.device)[None],
                use_cache=False,
            )
        logits = self._output_layer(output.last_hidden_state[0])
        ours = torch.cat([logits[torch.from_numpy(rows).to(self.device)] for rows in tree.rows]).double()
        theirs = torch.cat(plain).double()
        error = float((ours - theirs).norm() / theirs.norm())
        tolerance = 0.1 if self.dtype == torch.bfloat16 else 1e-3
        if not error < tolerance:
            name = type(self.causal_lm).__name__
            raise TrainerError(
                f"{name}: training computes other logits than the model's own forward pass "
                f"(relative error {error:.2g})",
                hint="its attention does not go through transformers' attention interface, or its logits are not a "
                "linear map of its last hidden states; choose another architecture",
            )
