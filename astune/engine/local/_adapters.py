"""Low-rank additions to linear layers, each for the rows of the policy that it belongs to.

One forward pass computes rows of several policies: the model's own weights for all of them at once, and each adapter
for its rows. In a batch-invariant pass an adapter is computed for every row and added to its own, so that the products
have the same number of rows always.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from astune.engine.adapters import Adapter
from astune.schema import EngineError


class PolicyRows(NamedTuple):
    """The rows of a pack that one policy computes."""

    policy: str
    rows: Tensor


def require_known(adapters: Mapping[str, Adapter], layers: Mapping[str, tuple[int, int]], model: str) -> None:
    """Raise EngineError where an adapter adds to what is no linear layer of the model, or to one of another size.

    Args:
        layers: inputs and outputs of each linear layer but the head, by its name.
    """
    for policy, adapter in adapters.items():
        for layer, (down, up, _) in sorted(adapter.items()):
            if layer not in layers:
                raise EngineError(
                    f"the adapter of {policy} adds to {layer!r}, which is no linear layer of {model}",
                    hint="use an adapter of this model, whose layers are attention and feed-forward ones",
                )
            size = int(down.shape[1]), int(up.shape[0])
            if size != layers[layer]:
                raise EngineError(
                    f"the adapter of {policy} takes {layer!r} for a layer of {size[0]} inputs and {size[1]} outputs, "
                    f"and {model} has {layers[layer][0]} and {layers[layer][1]}",
                    hint="use an adapter of this model: its folder's adapter_config.json names the one it is for",
                )


def copied(
    adapters: Mapping[str, Adapter], dtype: torch.dtype, device: torch.device
) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    """Return both factors by policy and layer, as they are computed with: `up` is scaled.

    Raises:
        EngineError: a number is not finite. Products of several policies would spread it to the rows of others.
    """
    found = {
        policy: {
            layer: (down.detach().to(device, dtype, copy=True), (up.detach().float() * scale).to(device, dtype))
            for layer, (down, up, scale) in adapter.items()
        }
        for policy, adapter in adapters.items()
    }
    for policy, adapter in found.items():
        for layer, factors in adapter.items():
            if not all(factor.isfinite().all() for factor in factors):
                raise EngineError(
                    f"the adapter of {policy} has numbers in {layer!r} that are not finite in {dtype}",
                    hint="its training diverged: lower its learning rate, or begin with an earlier checkpoint",
                )
    return found


class Adapters:
    """The adapters of an engine's policies; empty where there is one policy alone."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def load(self, adapters: Mapping[str, Adapter], dtype: torch.dtype, device: torch.device) -> None:
        """Take copies of adapters in place of those of the same policies."""
        self._of |= copied(adapters, dtype, device)

    def layers(self) -> set[str]:
        """Names of the layers that any policy adds to."""
        return {layer for adapter in self._of.values() for layer in adapter}

    def add(self, layer: str, x_ND: Tensor, y_NE: Tensor, parts: list[PolicyRows], *, whole: bool) -> None:
        """Add to a layer's output, in place.

        Args:
            whole: compute every row and add to the policy's own.
        """
        for policy, rows in parts:
            factors = self._of.get(policy, {}).get(layer)
            if factors is None:
                continue
            down, up = factors
            if whole:
                y_NE.index_add_(0, rows, (x_ND @ down.T @ up.T)[rows])
            else:
                y_NE.index_add_(0, rows, x_ND[rows] @ down.T @ up.T)
