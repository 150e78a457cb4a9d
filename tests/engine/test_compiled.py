"""The C sources compile wherever the processor has their instructions: where one does not, its tests skip."""

from __future__ import annotations

from pathlib import Path
from shutil import which

import pytest
import torch

import astune
from astune.engine.compiled import compiled_for, processor

SOURCES = sorted(Path(astune.__file__).parent.rglob("*.c"))
REQUIRED = {torch.bfloat16: {"avx512_bf16", "avx512_vnni"}, torch.float32: {"avx2", "fma"}}


@pytest.mark.skipif(which("gcc") is None, reason="there is no gcc")
@pytest.mark.parametrize("dtype", REQUIRED, ids=str)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_it_compiles(source: Path, dtype: torch.dtype) -> None:
    if not REQUIRED[dtype] <= set(processor().split()):
        pytest.skip("this CPU lacks AVX512-BF16 or AVX2")
    assert compiled_for(dtype, source, {}, doing="testing") is not None
