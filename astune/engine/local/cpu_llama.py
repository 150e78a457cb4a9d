"""The Llama family's decoder written out for a CPU, where a small model spends its time on starting operators.

Same mathematics and weights as transformers' modules (Llama, Mistral, Qwen2, Qwen3), in linear layers of its own and
compiled kernels. Everything else runs through `HfModel`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.adapters import Adapter
from astune.engine.local import _cpu_linear
from astune.engine.local._adapters import copied, require_known
from astune.engine.local._batch import PackedBatch
from astune.engine.local._cpu_adapters import AdapterRows, LowRank
from astune.engine.local._cpu_linear import Gate, Linear
from astune.engine.local._hf_model import fitting, require_none_missing
from astune.engine.local.attention import Rule
from astune.engine.local.decoder import CompiledDecoder, DecoderLayer, DecoderShape
from astune.engine.local.kernels import are_available, can_attend_to, kernels
from astune.engine.local.slots import LayerShape

_FAMILY = {"llama", "mistral", "qwen2", "qwen3"}
_LINEARS = {
    "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "out": ["self_attn.o_proj"],
    "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    "down": ["mlp.down_proj"],
}


def is_supported(model: Any) -> bool:
    """Whether this transformers model is one that `CpuLlama` computes."""
    config = model.config
    windows = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    windowed = windows or (config.model_type == "mistral" and config.sliding_window is not None)
    return (
        model.device.type == "cpu"
        and _cpu_linear.is_available(model.dtype)
        and are_available(model.dtype)
        and config.model_type in _FAMILY
        and config.hidden_act == "silu"
        and not windowed
        and model.model.rotary_emb.inv_freq.numel() * 2 == _head_dim(config)
    )


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


class _Columns(NamedTuple):
    """A linear layer among the outputs of a product of several."""

    layer: str
    first: int


class StoredBatch(Protocol):
    """Batch of a layer: the places where its tokens' keys and values are stored, and its attention."""

    cache: Any
    n_tokens: int
    slots: Tensor
    positions: Tensor

    def attend_to_stored(self, layer: int, q_NHD: Tensor, rule: Rule, /) -> Tensor: ...


class CpuLlama:
    """The decoder over packed weights. The transformers model it is built from is not kept.

    Args:
        weights: by name, in place of the model's own.
        int8: keep the linear layers' weights in 8 bits, where `products.py` computes them.
    """

    def __init__(self, model: Any, weights: Mapping[str, Tensor] | None = None, *, int8: bool = False) -> None:
        config, weights = model.config, weights or dict(model.named_parameters())
        self.vocab_size: int = config.vocab_size
        self._layers: int = config.num_hidden_layers
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._dim: int = _head_dim(config)
        self._eps: float = config.rms_norm_eps
        self._dtype: torch.dtype = model.dtype
        self._int8 = int8
        self._kernels = kernels(model.dtype)
        self._rule = Rule(self._dim**-0.5)
        self._rotary = model.model.rotary_emb
        self.layer_shapes = [LayerShape(self._kv_heads, self._dim, self._dim)] * self._layers
        self._tensors: dict[str, Tensor] = {}
        """Embeddings and norms by name."""
        self._linears: dict[str, Linear] = {}
        self._gates: dict[str, Gate] = {}
        self._shapes = {name: weight.shape for name, weight in weights.items()}
        self._tied = "lm_head.weight" not in self._shapes
        self._columns = {name: self._columns_of(names) for name, names in self._groups().values() if name != "lm_head"}
        self._adapters: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
        """Both factors by policy and layer, scaled."""
        self._decoder: CompiledDecoder | None = None
        self.load(weights.items())
        layers = (*self._linears.values(), *self._gates.values())
        in_place = can_attend_to(self.layer_shapes, self._dtype)
        self.is_row_invariant = in_place and all(layer.is_row_invariant for layer in layers)

    def load(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        groups = self._groups()
        pending: dict[str, dict[str, Tensor]] = {}
        loaded: set[str] = set()
        given = ((name, tensor) for name, tensor in named_tensors if name != "lm_head.weight" or not self._tied)
        for name, tensor in fitting(given, self._shapes):
            loaded.add(name)
            group, members = groups.get(name, ("", []))
            if not group:
                self._tensors[name] = tensor.to(self._dtype, copy=True)
                continue
            parts = pending.setdefault(group, {})
            parts[name] = tensor.to(self._dtype)
            if len(parts) == len(members):
                self._pack(group, [parts[member] for member in members])
                del pending[group]
        require_none_missing(sorted(self._shapes.keys() - loaded))
        if self._tied:
            self._linears["lm_head"] = _cpu_linear.linear(self._tensors["model.embed_tokens.weight"], int8=self._int8)
        self._put_together()

    def _pack(self, group: str, parts: list[Tensor]) -> None:
        """Weights come first, then as many biases or none."""
        weights = [part for part in parts if part.dim() == 2]
        biases = [part for part in parts if part.dim() == 1]
        if group.endswith("gate_up"):
            of_both = (biases[0], biases[1]) if biases else None
            self._gates[group] = _cpu_linear.gate(weights[0], weights[1], of_both, int8=self._int8)
        else:
            bias = torch.cat(biases) if biases else None
            self._linears[group] = _cpu_linear.linear(torch.cat(weights), bias, int8=self._int8)

    def drop(self) -> None:
        self._decoder = None
        self._tensors.clear()
        self._linears.clear()
        self._gates.clear()

    def _groups(self) -> dict[str, tuple[str, list[str]]]:
        """Map a weight or bias to its fused linear layer, with all members of that layer in order."""
        groups = {} if self._tied else {"lm_head.weight": ("lm_head", ["lm_head.weight"])}
        for layer in range(self._layers):
            for linear, modules in _LINEARS.items():
                names = [f"model.layers.{layer}.{module}.{kind}" for kind in ("weight", "bias") for module in modules]
                members = [name for name in names if name in self._shapes]
                groups.update(dict.fromkeys(members, (f"{layer}.{linear}", members)))
        return groups

    def forward(self, batch: PackedBatch) -> Tensor:
        x = F.embedding(batch.input_ids, self._tensors["model.embed_tokens.weight"])
        angles = self.angles(batch.positions)
        rows = AdapterRows(list(self._adapters), batch.policies, len(x)) if self._adapters else None
        if self._decoder and (tokens := batch.tokens(self._rule)):
            x = self._decoder(x, angles, batch, tokens, rows)
        else:
            for layer in range(self._layers):
                x = self.layer(layer, x, angles, batch, rows)
        return self.logits(self.norm(x[batch.logit_rows]))

    def angles(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, D / 2] in float32."""
        like = self._tensors["model.norm.weight"]
        cos, sin = (
            angle[0, :, : self._dim // 2].float().contiguous() for angle in self._rotary(like, positions_N[None])
        )
        return cos, sin

    def norm(self, x_NW: Tensor) -> Tensor:
        """The last norm."""
        return self._norm("model.norm", x_NW)

    def logits(self, normed_NW: Tensor) -> Tensor:
        return self._linears["lm_head"](normed_NW)

    def layer(
        self, layer: int, x: Tensor, angles: tuple[Tensor, Tensor], batch: StoredBatch, rows: AdapterRows | None = None
    ) -> Tensor:
        """Compute a layer for x [rows, width]; keys and values are stored in the batch's cache."""
        linears, prefix = self._linears, f"model.layers.{layer}"
        hidden = self._norm(f"{prefix}.input_layernorm", x)
        qkv_NHD = linears[f"{layer}.qkv"](hidden, rows).view(len(x), -1, self._dim)[: batch.n_tokens]
        self._kernels.turn_and_store(
            qkv_NHD,
            self._head_norms(prefix),
            self._eps,
            angles,
            batch.slots,
            batch.positions,
            batch.cache.keys[layer],
            batch.cache.values[layer],
        )
        attended = batch.attend_to_stored(layer, qkv_NHD[:, : self._heads], self._rule)
        x = linears[f"{layer}.out"].add(attended.reshape(len(x), -1), x, rows)
        gated = self._gates[f"{layer}.gate_up"](self._norm(f"{prefix}.post_attention_layernorm", x), rows)
        return linears[f"{layer}.down"].add(gated, x, rows)

    def load_adapters(self, adapters: Mapping[str, Adapter]) -> None:
        known = {
            module: (self._shapes[f"{module}.weight"][1], self._shapes[f"{module}.weight"][0])
            for linear, names in self._groups().values()
            for module in _modules(names)
            if linear != "lm_head"
        }
        require_known(adapters, known, "the in-process engine's Llama")
        self._adapters |= copied(adapters, self._dtype, torch.device("cpu"))
        self._put_together()

    def _put_together(self) -> None:
        """Give products their adapters, and make one function of all layers, over the tensors that are loaded now."""
        for name, columns in self._columns.items() if self._adapters else ():
            product = self._gates[name] if name in self._gates else self._linears[name]
            product.load_adapters(
                [
                    [LowRank(*adapter[layer], first) for layer, first in columns if layer in adapter]
                    for adapter in self._adapters.values()
                ]
            )
        inner_width = self._shapes["model.layers.0.mlp.down_proj.weight"][1]
        sizes = (self._tensors["model.norm.weight"].numel(), self._heads, self._kv_heads, self._dim, inner_width)
        shape = DecoderShape(*sizes, self._eps, self._rule.scale)
        layers = [self._decoder_layer(number) for number in range(self._layers)]
        self._decoder = CompiledDecoder.of(shape, layers, len(self._adapters))

    def _decoder_layer(self, layer: int) -> DecoderLayer:
        norms, prefix = self._tensors, f"model.layers.{layer}"
        return DecoderLayer(
            norms[f"{prefix}.input_layernorm.weight"],
            self._head_norms(prefix),
            norms[f"{prefix}.post_attention_layernorm.weight"],
            [(self._gates if name == "gate_up" else self._linears)[f"{layer}.{name}"] for name in _LINEARS],
        )

    def _columns_of(self, names: Iterable[str]) -> list[_Columns]:
        """The linear layers of a product, in order."""
        modules = _modules(name for name in names if name.endswith(".weight"))
        widths = [self._shapes[f"{module}.weight"][0] for module in modules]
        return [_Columns(module, sum(widths[:index])) for index, module in enumerate(modules)]

    def _head_norms(self, prefix: str) -> tuple[Tensor, Tensor] | None:
        names = [f"{prefix}.self_attn.{which}_norm.weight" for which in "qk"]
        return (self._tensors[names[0]], self._tensors[names[1]]) if names[0] in self._tensors else None

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return self._kernels.rms_norm(x, self._tensors[f"{name}.weight"], self._eps)


def _modules(weights: Iterable[str]) -> list[str]:
    return [name.rpartition(".")[0] for name in weights]
