"""Any causal language model of transformers over our slot cache, through transformers' attention interface.

The model's own code runs unchanged; only its attention function is ours. Each architecture is checked against the
model's own forward when it is loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.adapters import Adapter
from astune.engine.local._adapters import Adapters, require_known
from astune.engine.local._batch import PackedBatch
from astune.engine.local.attention import Rule
from astune.engine.local.slots import LayerShape
from astune.engine.whole_model import load_causal_lm, without_gaps
from astune.schema import EngineError

_ATTENTION = "astune_slots"
_OTHER_ENGINE = "it serves decoders whose only memory is keys and values; use another model or another kind of engine"
_PROBE_TOKENS = 12
"""Long enough for positions to matter, short enough to cost nothing."""


class TokenModel(Protocol):
    """Model interface of the scheduler."""

    vocab_size: int
    layer_shapes: list[LayerShape]
    is_row_invariant: bool
    """Whether a row's numbers are the same whatever the number of rows of a pack."""

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits [logit rows, vocabulary]."""
        ...

    def load(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Take new weights by their Hugging Face names.

        Raises:
            EngineError: a name is unknown, a shape differs, or a weight is missing.
        """
        ...

    def drop(self) -> None:
        """Free the weights until the next `load`, where a load brings all of them."""
        ...

    def load_adapters(self, adapters: Mapping[str, Adapter]) -> None:
        """Take adapters of policies; rows of others are computed without them.

        Raises:
            EngineError: one adds to what is no linear layer.
        """
        ...


class _Attention(Protocol):
    def attend(self, layer: int, q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor, rule: Rule) -> Tensor: ...


_ATTENDING: ContextVar[_Attention] = ContextVar("attending")
"""The attention of the forward pass under way; not every architecture hands keyword arguments down to it."""


class HfModel:
    """A transformers model whose attention reads and writes slots."""

    is_row_invariant = False

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self._takes_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._adapters = Adapters()
        self._hooked: set[str] = set()
        self.layer_shapes, self.windowed = self._probe()
        """`windowed`: whether windows of attention come to us as an argument; those that only a mask says do not."""

    def forward(self, batch: PackedBatch) -> Tensor:
        return self._logits(batch.input_ids, batch.positions, batch, batch.logit_rows)

    def load(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        copy_weights(self.model.state_dict(), named_tensors)  # with what is saved and not trained

    def drop(self) -> None:
        """No-op: a load copies into the model's own modules."""

    def load_adapters(self, adapters: Mapping[str, Adapter]) -> None:
        head = self.model.get_output_embeddings()
        linears: dict[str, Any] = {
            name: module for name, module in self.model.named_modules() if _is_linear(module) and module is not head
        }
        sizes = {name: _size(module) for name, module in linears.items()}
        require_known(adapters, sizes, type(self.model).__name__)
        self._adapters.load(adapters, self.model.dtype, self.model.device)
        for name in self._adapters.layers() - self._hooked:
            linears[name].register_forward_hook(partial(self._add, name))
            self._hooked.add(name)

    def _add(self, layer: str, _: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """After a linear layer: what adapters add to the pack's rows."""
        batch = _ATTENDING.get()
        if isinstance(batch, PackedBatch):
            x_ND, y_NE = inputs[0].flatten(0, -2), output.flatten(0, -2)
            self._adapters.add(layer, x_ND, y_NE, batch.policies, whole=batch.is_invariant)

    def _logits(self, input_ids: Tensor, positions: Tensor, attention: _Attention, rows: Tensor) -> Tensor:
        selection = {"logits_to_keep": rows} if self._takes_rows else {}
        token = _ATTENDING.set(attention)
        try:
            output = self.model(input_ids=input_ids[None], position_ids=positions[None], use_cache=False, **selection)
        finally:
            _ATTENDING.reset(token)
        return output.logits[0] if self._takes_rows else output.logits[0, rows]

    @torch.inference_mode()
    def _probe(self) -> tuple[list[LayerShape], bool]:
        """Run a few tokens both ways; learn what each layer caches, and that our attention gives the same logits."""
        name = type(self.model).__name__
        device = self.model.device
        ids = torch.arange(_PROBE_TOKENS, device=device) * 37 % min(self.vocab_size, 1000)
        rows = torch.arange(_PROBE_TOKENS, device=device)
        own = self.model(input_ids=ids[None], use_cache=False).logits[0].float()
        probe = _Probe()
        try:
            self.model.set_attn_implementation(_ATTENTION)
            computed = self._logits(ids, rows, probe, rows).float()
        except Exception as cause:
            raise EngineError(f"{name} cannot run on the in-process engine: {type(cause).__name__}: {cause}") from cause
        layers = len(probe.shapes)
        if not layers or sorted(probe.shapes) != list(range(layers)):
            raise EngineError(
                f"{name} does not run its attention through transformers' attention interface", hint=_OTHER_ENGINE
            )
        tolerance = 0.05 if self.model.dtype == torch.bfloat16 else 1e-3
        error = float((computed - own).norm() / own.norm())
        if not error < tolerance:
            raise EngineError(
                f"{name} computes something else with the in-process engine's attention "
                f"(relative difference of the logits {error:.2g})",
                hint=_OTHER_ENGINE,
            )
        return [probe.shapes[layer] for layer in range(layers)], probe.windowed


def _is_linear(module: Any) -> bool:
    """Linear layers, and GPT-2's, which are called Conv1D."""
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"


def _size(linear: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    rows, columns = linear.weight.shape
    return (columns, rows) if isinstance(linear, torch.nn.Linear) else (rows, columns)


class _Probe:
    """Stand-in for a batch: records what each layer would cache, and attends without a cache."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.windowed = False

    def attend(self, layer: int, q_NHD: Tensor, k_NHD: Tensor, v_NHD: Tensor, rule: Rule) -> Tensor:
        self.shapes[layer] = LayerShape(k_NHD.shape[1], k_NHD.shape[2], v_NHD.shape[2])
        self.windowed |= rule.window is not None
        q, k, v = (x.transpose(0, 1) for x in (q_NHD, k_NHD, v_NHD))
        k, v = (x.repeat_interleave(q.shape[0] // k.shape[0], 0) for x in (k, v))
        scores = q @ k.transpose(1, 2) * rule.scale
        if rule.softcap is not None:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        future = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        weights = F.softmax(scores.float().masked_fill(future, float("-inf")), dim=-1)
        return (weights.to(v.dtype) @ v).transpose(0, 1)


def _slot_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: [1, heads, tokens, dim] in, [1, tokens, heads, dim] out."""
    if s_aux is not None:
        raise EngineError("attention sinks are not supported by the in-process engine")
    rule = Rule(query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap)
    q_NHD, k_NHD, v_NHD = (x[0].transpose(0, 1) for x in (query, key, value))
    out = _ATTENDING.get().attend(module.layer_idx, q_NHD, k_NHD, v_NHD, rule)
    return out[None], None


def load_transformers(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The model as transformers builds it, on the device, with its own attention."""
    from transformers.modeling_utils import AttentionInterface
    from transformers.utils import logging

    AttentionInterface.register(_ATTENTION, _slot_attention)
    progress_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return without_gaps(load_causal_lm(folder, dtype, error=EngineError)).to(device)
    finally:
        if progress_bar:
            logging.enable_progress_bar()


def copy_weights(own: dict[str, Tensor], named_tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copy tensors over those of the same name; tied ones may come under any of their names.

    Raises:
        EngineError: a name is unknown, a shape differs, or a weight was left out and would be stale.
    """
    loaded: set[int] = set()
    for name, tensor in fitting(named_tensors, {name: tensor.shape for name, tensor in own.items()}):
        own[name].data.copy_(tensor)
        loaded.add(own[name].data_ptr())
    require_none_missing([name for name, tensor in own.items() if tensor.data_ptr() not in loaded])


def fitting(
    named_tensors: Iterable[tuple[str, Tensor]], shapes: Mapping[str, torch.Size]
) -> Iterator[tuple[str, Tensor]]:
    """Yield new weights, detached. Raises EngineError where a name is unknown, or a shape differs."""
    for name, tensor in named_tensors:
        if name not in shapes:
            raise EngineError(f"new weights hold {name!r}, which the model does not have")
        if shapes[name] != tensor.shape:
            raise EngineError(f"{name} has shape {list(tensor.shape)} instead of {list(shapes[name])}")
        yield name, tensor.detach()


def require_none_missing(missing: Sequence[str]) -> None:
    """Raise EngineError for weights that were left out and would be stale."""
    if missing:
        raise EngineError(f"new weights lack {missing[0]!r}" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
