"""Sums of gradients in float32."""

from __future__ import annotations

import pytest
import torch

from astune.trainer.master_weights import add_up


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (1025, 2049), (2, 3, 700_000), (3 << 20,)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_part_of_any_shape_is_added_whole(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    total = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    part = torch.randn(shape[::-1], generator=torch.Generator().manual_seed(1)).to(dtype)
    part = part.permute(tuple(reversed(range(part.dim()))))  # as of a transposed weight
    expected = total + part
    add_up(total, part)
    assert torch.equal(total, expected)
