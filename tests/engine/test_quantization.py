"""Sampling with weights in 8 bits: near the model's own probabilities, with its newest weights, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import Weights, load, transformers_model
from pydantic import ValidationError
from test_architectures import save_random

from astune.backbone.base import find_backbone
from astune.config.schema import AstuneConfig
from astune.engine import InProcessEngine
from astune.engine.local import in_process
from astune.engine.local.device import takes_int8
from astune.schema import ConfigError, EngineError, SamplingParams

PROMPT = [504, 3575, 282, 4649, 314]
"""The capital of France is"""


async def difference(engine: InProcessEngine, model: Any) -> float:
    """Mean distance of the log-probabilities of 200 sampled tokens from those of transformers in float32."""
    params = [SamplingParams(max_tokens=50, seed=seed) for seed in range(4)]
    completions = await asyncio.gather(
        *(engine.generate(PROMPT, each, session=f"{number}") for number, each in enumerate(params))
    )
    sampled = torch.tensor([each.token_ids for each in completions])
    with torch.inference_mode():
        ids = torch.cat([torch.tensor([PROMPT] * len(params)), sampled], 1)
        logprobs = model(ids).logits[:, len(PROMPT) - 1 : -1].log_softmax(-1).gather(2, sampled[..., None])[..., 0]
    return float((torch.tensor([each.logprobs for each in completions]) - logprobs).abs().mean())


@pytest.fixture(params=["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
async def int8(request: pytest.FixtureRequest, smol_folder: Path) -> AsyncIterator[InProcessEngine]:
    if not takes_int8(getattr(torch, request.param)):
        pytest.skip("this CPU has no products in 8 bits")
    engine = load(smol_folder, dtype=request.param, quantization="int8")
    yield engine
    await engine.aclose()


@pytest.mark.slow
async def test_probabilities_are_near_the_models(
    int8: InProcessEngine, smol_folder: Path, request: pytest.FixtureRequest
) -> None:
    model = transformers_model(smol_folder)
    unquantized = load(smol_folder, dtype=request.node.callspec.params["int8"])
    assert await difference(unquantized, model) < await difference(int8, model) < 0.12
    await unquantized.aclose()


@pytest.mark.slow
async def test_new_weights_are_brought_to_8_bits(int8: InProcessEngine, smol_folder: Path) -> None:
    model = transformers_model(smol_folder)
    for layer in model.model.layers:
        layer.mlp.down_proj.weight.data *= 0.8
    before = await difference(int8, model)
    await int8.load_weights(Weights(1, model))
    assert await difference(int8, model) < 0.12 < before
    model.model.layers[3].mlp.down_proj.weight.data[3, 3] = float("nan")
    await int8.load_weights(Weights(2, model))
    with pytest.raises(EngineError, match="not finite"):
        await int8.generate(PROMPT, SamplingParams(max_tokens=5), session="b")


@pytest.mark.parametrize(("architecture", "taken"), [("GPTNeoX", True), ("Llama", False)])
def test_a_model_without_such_products_is_refused(
    architecture: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_random(architecture, {}, tmp_path)
    monkeypatch.setattr(in_process, "takes_int8", lambda _: taken)
    with pytest.raises(ConfigError, match=r"int8 does not compute a \w+ in torch\.float32") as refused:
        load(tmp_path, dtype="float32", quantization="int8")
    assert "set it to none" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"engine": {"type": "vllm"}}, "engine.type vllm does not quantize: set engine.quantization to none"),
        ({"deterministic": True}, "set engine.quantization to none"),
    ],
)
def test_an_experiment_that_it_does_not_fit_is_refused(settings: dict[str, Any], named: str) -> None:
    engine = {"quantization": "int8"} | settings.get("engine", {})
    with pytest.raises(ValidationError, match=named):
        AstuneConfig.model_validate(settings | {"engine": engine})


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_a_cluster_samples_with_its_own_servers(backbone: str) -> None:
    config = AstuneConfig.model_validate({"backbone": backbone, "engine": {"quantization": "int8"}})
    with pytest.raises(ConfigError, match=f"engine.quantization cannot be used with backbone {backbone}") as refused:
        find_backbone(backbone).check(config)
    assert refused.value.hint == "set it to none"
