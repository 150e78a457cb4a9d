"""Several policies in one engine: each says what it would say alone, whatever others are computed in the same pass."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from engine_helpers import assert_exact, transformers_model
from examples import some
from safetensors.torch import load_file, save_file
from test_architectures import save_random

from astune.config.schema import EngineConfig, ModelConfig
from astune.engine import InProcessEngine
from astune.engine.adapters import Adapter, Factors, base_of, read_adapter, write_adapter
from astune.engine.local._cpu_linear import takes_bfloat16
from astune.engine.local._hf_model import HfModel
from astune.engine.local.cpu_llama import CpuLlama
from astune.schema import Completion, ConfigError, EngineError, SamplingParams

POLICIES = ("wolf", "farmer", "")
NEW = {"wolf": None, "farmer": None}
ARCHITECTURES = [
    ("Llama", {"tie_word_embeddings": True}, CpuLlama),
    ("Qwen2", {}, CpuLlama),
    ("Gemma2", {"head_dim": 16, "sliding_window": 512}, HfModel),
]


@dataclass
class Source:
    version: int
    of: dict[str, dict[str, Factors]]

    def adapters(self) -> Mapping[str, Adapter]:
        return self.of


def random_adapter(folder: Path, rank: int, seed: int) -> dict[str, Factors]:
    """Noticeable additions to every linear layer but the head."""
    generator = torch.Generator().manual_seed(seed)
    linears = {
        name: module
        for name, module in transformers_model(folder).named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }
    return {
        name: Factors(
            torch.randn(rank, module.in_features, generator=generator) * 0.2,
            torch.randn(module.out_features, rank, generator=generator) * 0.2,
            0.5,
        )
        for name, module in linears.items()
    }


def adapters(folder: Path) -> dict[str, dict[str, Factors]]:
    return {"wolf": random_adapter(folder, 3, 1), "farmer": random_adapter(folder, 5, 2)}


def merged_model(folder: Path, adapter: Mapping[str, Factors]) -> Any:
    model = transformers_model(folder)
    for name, (down, up, scale) in adapter.items():
        model.get_submodule(name).weight.data += up @ down * scale
    return model


def load(
    folder: Path,
    *,
    deterministic: bool = False,
    dtype: str = "float32",
    quantization: Literal["none", "int8"] = "none",
    **begun: str,
) -> InProcessEngine:
    return InProcessEngine.load(
        folder,
        model=ModelConfig.model_validate({"device": "cpu", "dtype": dtype}),
        engine=EngineConfig(quantization=quantization),
        max_model_len=512,
        deterministic=deterministic,
        adapters=NEW | begun,
    )


async def said(engine: InProcessEngine, policies: tuple[str, ...], *, together: bool) -> list[Completion]:
    """Two turns of one conversation with each policy; all begin alike, so that a cache would mix them up."""

    async def talk(number: int, policy: str) -> list[Completion]:
        prompt, found = [9] * 70 + [3 + number // 3], []
        for turn in range(2):
            params = SamplingParams(max_tokens=9, seed=10 * number + turn, policy=policy)
            found.append(await engine.generate(prompt, params, session=f"{number}"))
            prompt = [*prompt, *found[-1].token_ids, 4]
        return found

    talks = [talk(number, policy) for number, policy in enumerate(policies)]
    done = await asyncio.gather(*talks) if together else [await one for one in talks]
    return [completion for one in done for completion in one]


@pytest.mark.parametrize(("architecture", "changes", "kind"), ARCHITECTURES)
async def test_policies_in_one_batch_say_what_each_merged_model_says(
    architecture: str, changes: dict[str, Any], kind: type, tmp_path: Path
) -> None:
    save_random(architecture, changes, tmp_path)
    engine, own = load(tmp_path), adapters(tmp_path)
    assert isinstance(engine._model, kind)
    assert await engine.load_adapters(Source(4, own)) == 4
    policies = POLICIES * 3
    completions = await said(engine, policies, together=True)
    await engine.aclose()
    models = {name: merged_model(tmp_path, own.get(name, {})) for name in POLICIES}
    for number, policy in enumerate(policies):
        first, second = completions[2 * number], completions[2 * number + 1]
        prompt = [9] * 70 + [3 + number // 3]
        assert_exact(models[policy], prompt, first)
        assert_exact(models[policy], [*prompt, *first.token_ids, 4], second)
        assert {first.weights_version, second.weights_version} == {4}
    assert len({tuple(one.token_ids) for one in completions[:6:2]}) == 3, "they are three policies"


@pytest.mark.parametrize(("architecture", "changes", "_"), some(ARCHITECTURES, 1))
@pytest.mark.parametrize("dtype", some(["float32", "bfloat16"], 1))
async def test_deterministic_batches_of_adapters_equal_single_runs_bit_for_bit(
    architecture: str, changes: dict[str, Any], _: type, dtype: str, tmp_path: Path
) -> None:
    save_random(architecture, changes, tmp_path)
    source, runs = Source(1, adapters(tmp_path)), []
    for together in (True, False):
        engine = load(tmp_path, deterministic=True, dtype=dtype)
        await engine.load_adapters(source)
        runs.append(await said(engine, POLICIES * 3, together=together))
        await engine.aclose()
    assert runs[0] == runs[1]


async def test_a_new_adapter_adds_nothing_and_a_frozen_policy_is_read_from_its_folder(
    tiny_folder: Path, tmp_path: Path
) -> None:
    own = random_adapter(tiny_folder, 3, 1)
    write_adapter(tmp_path / "old", own, base="tiny")
    engine = load(tiny_folder, old=str(tmp_path / "old"))
    prompt, base, old = [5] * 20, transformers_model(tiny_folder), merged_model(tiny_folder, own)
    for policy, model in (("wolf", base), ("", base), ("old", old)):
        completion = await engine.generate(prompt, SamplingParams(max_tokens=6, seed=1, policy=policy), session="s")
        assert_exact(model, prompt, completion)
    with pytest.raises(EngineError, match="no policy 'fox'"):
        await engine.generate(prompt, SamplingParams(max_tokens=6, policy="fox"), session="s")
    with pytest.raises(EngineError, match=r"the adapter of wolf adds to 'model\.nothing'"):
        await engine.load_adapters(Source(1, {"wolf": {"model.nothing": own[next(iter(own))]}}))
    await engine.aclose()
    with pytest.raises(ConfigError, match="is no adapter that can be read"):
        load(tiny_folder, old=str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"use_rslora": True}, "use_rslora is True"),
        ({"use_dora": True}, "use_dora is True"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern is"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern is"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"init_lora_weights": "pissa"}, "changes the model"),
        ({"r": 4}, "and the rank is 4"),
    ],
)
def test_an_adapter_that_is_more_than_two_factors_is_refused(
    changes: dict[str, Any], reason: str, tiny_folder: Path, tmp_path: Path
) -> None:
    write_adapter(tmp_path, random_adapter(tiny_folder, 3, 1), base="tiny")
    assert read_adapter(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ConfigError) as refused:
        read_adapter(tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("base_model.model.model.norm.weight", "neither lora_A nor lora_B"),
        ("base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector", "neither lora_A nor lora_B"),
        ("base_model.model.other.lora_B.weight", "without its other half"),
    ],
)
def test_an_adapter_with_other_tensors_is_refused(name: str, reason: str, tiny_folder: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path, random_adapter(tiny_folder, 3, 1), base="tiny")
    file = tmp_path / "adapter_model.safetensors"
    save_file(load_file(file) | {name: torch.zeros(4, 3)}, file)
    with pytest.raises(ConfigError, match=reason):
        read_adapter(tmp_path)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_folder_with_numbers_that_are_not_finite_is_refused_by_policy_and_layer(
    number: float, tiny_folder: Path, tmp_path: Path
) -> None:
    own = random_adapter(tiny_folder, 3, 1)
    layer = sorted(own)[3]
    own[layer].up[1, 2] = number
    write_adapter(tmp_path, own, base="tiny")
    with pytest.raises(ConfigError) as refused:
        load(tiny_folder, old=str(tmp_path))
    damaged = f"models.old: the adapter in {tmp_path} is damaged: base_model.model.{layer}.lora_B.weight has numbers"
    assert damaged in str(refused.value)


@pytest.mark.parametrize(("architecture", "changes", "kind"), ARCHITECTURES[::2])
async def test_an_adapter_that_is_not_finite_in_the_engine_s_numbers_is_refused(
    architecture: str, changes: dict[str, Any], kind: type, tmp_path: Path
) -> None:
    save_random(architecture, changes, tmp_path)
    engine, own = load(tmp_path, dtype="bfloat16"), random_adapter(tmp_path, 3, 1)
    assert isinstance(engine._model, kind if takes_bfloat16() else HfModel)
    layer = next(iter(own))
    own[layer].down[0, 0] = torch.finfo(torch.float32).max  # more than bfloat16 holds
    with pytest.raises(EngineError, match=rf"the adapter of wolf has numbers in '{layer}' that are not finite"):
        await engine.load_adapters(Source(2, {"wolf": own}))
    await engine.aclose()


@pytest.mark.parametrize("text", ["{", "[]", "\x00", None])
def test_the_model_of_an_adapter_that_cannot_be_read_is_refused(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"{tmp_path} is no adapter that can be read"):
        base_of(tmp_path)


def test_an_adapter_of_the_head_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, {"lm_head": Factors(torch.zeros(3, 8), torch.zeros(9, 3), 1.0)}, base="tiny")
    with pytest.raises(ConfigError, match="it adapts lm_head"):
        read_adapter(tmp_path)


@pytest.mark.parametrize(("architecture", "changes", "kind"), ARCHITECTURES[::2])
async def test_an_adapter_of_layers_of_another_size_is_refused(
    architecture: str, changes: dict[str, Any], kind: type, tmp_path: Path
) -> None:
    save_random(architecture, changes, tmp_path)
    engine, own = load(tmp_path), random_adapter(tmp_path, 3, 1)
    assert isinstance(engine._model, kind)
    layer = next(iter(own))
    wider = own[layer]._replace(down=torch.zeros(3, own[layer].down.shape[1] + 1))
    with pytest.raises(EngineError, match="the adapter of wolf takes"):
        engine._model.load_adapters({"wolf": own | {layer: wider}})
    head = Factors(torch.zeros(3, 1), torch.zeros(1, 3), 1.0)
    with pytest.raises(EngineError, match="adds to 'lm_head'"):
        engine._model.load_adapters({"wolf": {"lm_head": head}})
    await engine.aclose()
