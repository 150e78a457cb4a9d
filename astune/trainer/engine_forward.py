"""The in-process engine's forward pass in training, so that both give a token the same log-probability to the last bit.

A layer of the model computes its output by the engine's kernels, whose numbers for a token depend on its sequence
alone, and is computed once more by its own for the gradient. A layer's input is all that is kept for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from astune.engine.local.attention import Rule
from astune.engine.local.cpu_llama import CpuLlama, is_supported
from astune.engine.local.kernels import kernels, room_for_scores
from astune.engine.local.slots import LayerShape
from astune.trainer.lora import ALONE
from astune.trainer.microbatch import MicroBatch
from astune.trainer.trie import Ints

if TYPE_CHECKING:
    from astune.trainer.policy_model import PolicyModel

Within = Callable[[], AbstractContextManager[None]]
Compute = Callable[[Tensor], Tensor]


class EngineForward:
    """The engine's decoder, with the weights of the model that computes: the one that is trained, or as it started."""

    def __init__(self, model: PolicyModel) -> None:
        self._llama = CpuLlama(model.causal_lm, dict(model.named_tensors()))
        self._held: tuple[PolicyModel, int] | None = (model, model.master_weights.version)

    @classmethod
    def of(cls, model: PolicyModel) -> EngineForward | None:
        """None where the engine computes the model otherwise, or not each row the same beside any others.

        One of several adapters is not merged into the engine's weights: its model computes by itself.
        """
        if model.adapter != ALONE or not is_supported(model.causal_lm):
            return None
        found = cls(model)
        return found if found._llama.is_row_invariant else None

    @contextmanager
    def computing(self, model: PolicyModel, batch: MicroBatch, within: Within) -> Iterator[None]:
        """Have a model's layers and last norm compute a micro-batch as the engine does, while this is entered.

        Args:
            within: what a layer's own computation needs to be in.
        """
        llama = self._with_weights_of(model)
        stored = _StoredTree(batch, llama.layer_shapes, model.dtype)
        angles = llama.angles(batch.position_ids_T)

        def of_layer(number: int) -> Compute:
            return lambda x: llama.layer(number, x, angles, stored)

        decoder = cast(Any, model.causal_lm).model
        computes = {layer: of_layer(number) for number, layer in enumerate(decoder.layers)} | {decoder.norm: llama.norm}
        before = {module: module.forward for module in computes}
        for module, compute in computes.items():
            module.forward = _computed_by(compute, module.forward, within)
        try:
            yield
        finally:
            for module, forward in before.items():
                module.forward = forward

    def logits(self, model: PolicyModel, hidden_RD: Tensor) -> Tensor:
        """[R, V] in the compute dtype."""
        return self._with_weights_of(model).logits(hidden_RD)

    def _with_weights_of(self, model: PolicyModel) -> CpuLlama:
        wanted = model, model.master_weights.version
        if self._held != wanted:
            self._held = None  # until all of them are there
            self._llama.load(model.named_tensors())
            self._held = wanted
        return self._llama


def _computed_by(compute: Compute, forward: Callable[..., Tensor], within: Within) -> Callable[..., Tensor]:
    def computed(hidden: Tensor, *arguments: Any, **named: Any) -> Tensor:
        def again(x: Tensor) -> Tensor:
            with within():
                return forward(x, *arguments, **named)

        # What is trained may be in the layer alone, as adapters are: the output needs a gradient all the same.
        anchor = torch.empty(0, requires_grad=True)
        return cast(Tensor, _Computed.apply(hidden, anchor, compute, again))

    return computed


class _Computed(torch.autograd.Function):
    """x [1, T, D] -> ours(x), with the gradient of `again`, which is computed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, compute: Compute, again: Compute) -> Tensor:
        ctx.save_for_backward(x)
        ctx.again = again
        return compute(x[0])[None]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.again(x)
        y.backward(grad_outputs[0])
        return x.grad, None, None, None


@dataclass(frozen=True, slots=True)
class _Path:
    """A sequence's rows of the layout, and those of them that no sequence before it has."""

    rows_L: Tensor
    own_N: Tensor
    lengths_N: Tensor
    """Number of tokens that each of `own_N` sees."""
    nowhere_N: Tensor
    """Zeros: the kernel's only slot, and no beginning elsewhere."""


class _Cache:
    """Keys and values of one layer at a time, [1, kv heads, T, dim]."""

    def __init__(self, shapes: Sequence[LayerShape], tokens: int, dtype: torch.dtype) -> None:
        shape = shapes[0]
        self.keys = [torch.empty(1, shape.kv_heads, tokens, shape.key_dim, dtype=dtype)] * len(shapes)
        self.values = [torch.empty(1, shape.kv_heads, tokens, shape.value_dim, dtype=dtype)] * len(shapes)


class _StoredTree:
    """A micro-batch for the engine's layers: each row's keys and values are stored at its place in the layout."""

    def __init__(self, batch: MicroBatch, shapes: Sequence[LayerShape], dtype: torch.dtype) -> None:
        self.n_tokens = len(batch.token_ids_T)
        self.slots = torch.zeros(self.n_tokens, dtype=torch.long)
        self.positions = torch.arange(self.n_tokens)
        self.cache = _Cache(shapes, self.n_tokens, dtype)
        self._paths = list(_paths(batch.rows))
        self._attend = kernels(dtype).attend
        self._scores = room_for_scores(max(map(len, batch.rows)))

    def attend_to_stored(self, layer: int, q_NHD: Tensor, rule: Rule) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        out_NHD = torch.empty_like(q_NHD, memory_format=torch.contiguous_format)
        for path in self._paths:
            out_NHD[path.own_N] = self._attend(
                q_NHD[path.own_N],
                keys.index_select(2, path.rows_L),
                values.index_select(2, path.rows_L),
                (path.nowhere_N, path.lengths_N, path.nowhere_N, path.nowhere_N),
                scale=rule.scale,
                window=len(path.rows_L),
                scores=self._scores,
            )
        return out_NHD


def _paths(rows: Sequence[Ints]) -> Iterator[_Path]:
    seen = set[int]()
    for sequence in rows:
        own = [depth for depth, row in enumerate(sequence.tolist()) if row not in seen]
        seen.update(sequence.tolist())
        if own:
            depth_N = torch.tensor(own)
            rows_L = torch.from_numpy(sequence)
            yield _Path(rows_L, rows_L[depth_N], depth_N + 1, torch.zeros_like(depth_N))
