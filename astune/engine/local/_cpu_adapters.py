"""Adapters of several policies in the linear layers of one forward pass, each for its policy's rows.

Our own products sum an adapter's numbers with the layer's; behind oneDNN's a compiled kernel adds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.local._adapters import PolicyRows
from astune.engine.local.kernels import kernels

_LANES = 16
"""The kernel takes ranks that are multiples of it."""

_NO_ROWS = torch.empty(0, dtype=torch.long)


class LowRank(NamedTuple):
    """x down^T up^T, which is added to some of a product's outputs."""

    down_RI: Tensor
    up_ER: Tensor
    first: int
    """The first of these outputs."""


class AdapterRows:
    """The policy of each row of a pack, whose adapter is added there.

    Args:
        policies: names, in the order in which layers were given their adapters.
        parts: the rows of each policy; those of the model itself are in none.
    """

    def __init__(self, policies: Sequence[str], parts: Sequence[PolicyRows], n_rows: int) -> None:
        rows = dict(parts)
        self._of_each = [rows.get(policy, _NO_ROWS) for policy in policies]
        self._n_rows = n_rows

    @cached_property
    def numbers(self) -> Tensor:
        """The policy of each row in int32, -1 for the model itself."""
        numbers = torch.full((self._n_rows,), -1, dtype=torch.int32)
        for number, rows in enumerate(self._of_each):
            numbers[rows] = number
        return numbers

    @cached_property
    def lists(self) -> tuple[Tensor, Tensor]:
        """The rows of policy 0, of policy 1 and so on, and where each policy's end."""
        return torch.cat(self._of_each), torch.tensor([len(rows) for rows in self._of_each]).cumsum(0)


class SeparateAdapters:
    """Policies' adapters of a product, added to its output."""

    def __init__(self, adapters: Sequence[Sequence[LowRank]], dtype: torch.dtype) -> None:
        self._kernels = kernels(dtype)
        self._kept: list[Tensor] = []
        entries: list[list[int]] = []
        for number, adapter in enumerate(adapters):
            for down_RI, up_ER, first in adapter:
                missing = -len(down_RI) % _LANES
                down_IR = F.pad(down_RI.T, (0, missing)).to(dtype).contiguous()
                up_RE = F.pad(up_ER.T, (0, 0, 0, missing)).to(dtype).contiguous()
                self._kept += down_IR, up_RE
                entries.append([number, down_IR.data_ptr(), up_RE.data_ptr(), len(up_RE), first, len(up_ER)])
        self._table = torch.tensor(entries, dtype=torch.long)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, x_ND: Tensor, y_NE: Tensor, rows: AdapterRows) -> None:
        """Add to a product's output, in place."""
        if self:
            self._kernels.add_low_rank(x_ND, y_NE, *rows.lists, self._table)
