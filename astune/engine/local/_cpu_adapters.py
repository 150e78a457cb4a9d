"""Adapters of several policies in a compiled kernel: each for its own rows, whose sums depend on no other row.

The torch operators in `_adapters.py` do the same for any model; starting them takes longer than what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.adapters import Adapter
from astune.engine.local._adapters import PolicyRows
from astune.engine.local._kernels import Kernels

_LANES = 16
"""Ranks are filled up with zeros to a multiple of it."""

_NO_ROWS = torch.empty(0, dtype=torch.long)

Adding = Callable[[str, Tensor, Tensor], None]
"""Adds to the output of a product: its name, its inputs, its output."""


class Columns(NamedTuple):
    """A linear layer as columns of a product of several."""

    layer: str
    first: int
    width: int


class CpuAdapters:
    """The adapters of an engine's policies.

    Args:
        products: what is computed as one product, by name.
    """

    def __init__(self, products: Mapping[str, Sequence[Columns]], kernels: Kernels, dtype: torch.dtype) -> None:
        self._products, self._kernels, self._dtype = products, kernels, dtype
        self._of: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
        self._tables: dict[str, Tensor] = {}
        """Arguments of `add_low_rank` by product, one row an adapter; addresses of tensors in `_of` are among them."""

    def load(self, adapters: Mapping[str, Adapter]) -> None:
        """Take copies of adapters in place of those of the same policies."""
        for policy, adapter in adapters.items():
            self._of[policy] = {
                layer: (self._filled(down).T.contiguous(), self._filled((up.detach().float() * scale).T))
                for layer, (down, up, scale) in adapter.items()
            }
        self._tables = {name: self._table(columns) for name, columns in self._products.items()}

    def _filled(self, factor: Tensor) -> Tensor:
        """[rank, width] with a rank that the kernel takes."""
        return F.pad(factor.detach().to(self._dtype), (0, 0, 0, -len(factor) % _LANES)).contiguous()

    def _table(self, columns: Sequence[Columns]) -> Tensor:
        entries: list[list[int]] = []
        for number, adapter in enumerate(self._of.values()):
            for layer, first, width in columns:
                if layer in adapter:
                    down, up = adapter[layer]
                    entries.append([number, down.data_ptr(), up.data_ptr(), len(up), first, width])
        return torch.tensor(entries, dtype=torch.long).reshape(-1, 6)

    def adding_to(self, parts: Sequence[PolicyRows]) -> Adding | None:
        """Return a function that adds to a product's output, in place, for a pack's rows; None without adapters."""
        if not self._of:
            return None
        rows = dict(parts)
        of_each = [rows.get(policy, _NO_ROWS) for policy in self._of]
        ends = torch.tensor([len(own) for own in of_each]).cumsum(0)
        return partial(self._add, torch.cat(of_each), ends)

    def _add(self, rows: Tensor, ends_P: Tensor, product: str, x_ND: Tensor, y_NE: Tensor) -> None:
        if len(table := self._tables[product]):
            self._kernels.add_low_rank(x_ND, y_NE, rows, ends_P, table)
