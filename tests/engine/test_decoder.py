"""All layers of next tokens in one call: bit for bit what the layers' single operations compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from examples import some
from test_adapters import POLICIES, Source, adapters, load, said
from test_architectures import save_random

from astune.engine.local.decoder import CompiledDecoder
from astune.engine.local.device import takes_int8
from astune.schema import Completion

IN_BFLOAT16 = pytest.mark.skipif(not takes_int8(torch.bfloat16), reason="this CPU lacks AVX512-BF16")


@pytest.mark.parametrize("settings", [{}, {"deterministic": True}, {"quantization": "int8"}], ids=str)
@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=IN_BFLOAT16), "float32"])
@pytest.mark.parametrize("adapted", some([True, False], 1))
@pytest.mark.parametrize(
    ("architecture", "changes"),
    some(
        [
            ("Qwen3", {"head_dim": 32}),  # norms of queries and keys
            ("Qwen2", {}),  # biases
            ("Llama", {"tie_word_embeddings": True}),
        ],
        1,
    ),
)
async def test_one_call_computes_what_single_operations_do(
    architecture: str,
    changes: dict[str, Any],
    adapted: bool,
    dtype: str,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "quantization" in settings and not takes_int8(getattr(torch, dtype)):
        pytest.skip("this CPU has no products in 8 bits")
    save_random(architecture, changes, tmp_path)
    rows: list[int] = []
    call = CompiledDecoder.__call__

    def counted(self: CompiledDecoder, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        rows.append(len(x))
        return call(self, x, *rest)

    monkeypatch.setattr(CompiledDecoder, "__call__", counted)

    async def completions(policies: tuple[str, ...]) -> list[Completion]:
        engine = load(tmp_path, dtype=dtype, **settings)
        if adapted:
            await engine.load_adapters(Source(1, adapters(tmp_path)))
        found = await said(engine, policies, together=True)
        await engine.aclose()
        return found

    policies = POLICIES * 5 if adapted else ("",) * 40
    in_one_call = await completions(policies)
    if not rows:
        pytest.skip("this CPU lacks AVX512-BF16 or AVX2, or there is no gcc")
    assert max(rows) >= len(policies)
    monkeypatch.setattr(CompiledDecoder, "of", lambda *_: None)
    rows.clear()
    assert await completions(policies) == in_one_call
    assert not rows
