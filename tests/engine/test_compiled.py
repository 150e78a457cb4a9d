"""The C sources compile wherever the processor has their instructions: where one does not, its tests skip."""

from __future__ import annotations

from pathlib import Path
from shutil import which

import pytest
import torch

import astune
from astune.engine.compiled import compiled_for, processor

SOURCES = sorted(Path(astune.__file__).parent.rglob("*.c"))
MULTIPLIES_BFLOAT16 = {"products", "decoder", "tree_attention"}
"""Sources whose form for bfloat16 is written in AVX512-BF16."""


def has(*instructions: str) -> bool:
    return set(instructions) <= set(processor().split())


@pytest.mark.skipif(which("gcc") is None or not has("avx2", "fma"), reason="there is no gcc, or no AVX2")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_it_compiles(source: Path, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and source.stem in MULTIPLIES_BFLOAT16 and not has("avx512_bf16", "avx512_vnni"):
        pytest.skip("this CPU lacks AVX512-BF16")
    assert compiled_for(dtype, source, {}, doing="testing") is not None
