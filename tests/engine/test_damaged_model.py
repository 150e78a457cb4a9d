"""A model's folder with a damaged file, or with files of two models: what is wrong is named, and nothing is made up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from astune.config.schema import ModelConfig
from astune.engine.model_files import resolve_model
from astune.engine.tokenizer import ModelTokenizer
from astune.engine.whole_model import load_causal_lm
from astune.schema import AstuneError, ConfigError, EngineError, TrainerError
from astune.trainer.policy_model import PolicyModel

WEIGHTS, UP = "model.safetensors", "model.layers.1.mlp.up_proj.weight"
BIAS = "model.layers.0.self_attn.q_proj.bias"
UPPER = [f"model.layers.1.{part}" for part in ("mlp.up_proj.weight", "input_layernorm.weight")]


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_folder, tmp_path / "model")


def configured(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def weighted(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:4000])


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut weights": (lambda folder: cut(folder / WEIGHTS), "model.safetensors is damaged: Error while deserializing"),
    "a pointer": (lambda f: (f / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "a missing shard": (
        lambda folder: (folder / WEIGHTS).rename(folder / "model-00002-of-00002.safetensors"),
        "no file named model.safetensors",
    ),
    "a missing weight": (
        lambda folder: weighted(folder, lambda tensors: tensors.pop(UP)),
        f"its config.json describes {UP}, which its weights lack",
    ),
    "missing weights": (
        lambda folder: weighted(folder, lambda tensors: [tensors.pop(name) for name in UPPER]),
        "input_layernorm.weight and 1 more, which its weights lack",
    ),
    "more layers": (
        lambda folder: configured(folder, num_hidden_layers=3),
        "its config.json describes model.layers.2.",
    ),
    "fewer layers": (
        lambda folder: configured(folder, num_hidden_layers=1),
        "its weights have model.layers.1.input_layernorm.weight and 8 more, which its config.json does not describe",
    ),
    "a bias too many": (
        lambda folder: weighted(folder, lambda tensors: tensors.update({BIAS: torch.zeros(64)})),
        f"its weights have {BIAS}, which its config.json does not describe",
    ),
    "another shape": (
        lambda folder: weighted(folder, lambda tensors: tensors.update({UP: torch.zeros(3, 64)})),
        f"{UP} in model.safetensors has shape [3, 64], but config.json describes [128, 64]",
    ),
    "another kind": (lambda folder: configured(folder, model_type="nonsense"), "does not recognize this architecture"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_weights_that_are_not_what_the_configuration_describes_are_refused(folder: Path, case: str) -> None:
    damage, fault = DAMAGED[case]
    damage(folder)
    with pytest.raises(EngineError) as refused:
        load_causal_lm(folder, torch.bfloat16, error=EngineError)
    assert fault in refused.value.message
    assert refused.value.message.startswith(f"the model in {folder} could not be loaded: ")
    in_two_sentences(refused.value)


def test_a_whole_model_is_loaded_as_it_is(folder: Path) -> None:
    loaded = load_causal_lm(folder, torch.bfloat16, error=EngineError)
    assert torch.equal(loaded.state_dict()[UP], load_file(folder / WEIGHTS)[UP])


def test_weights_that_are_no_numbers_are_refused_before_they_are_trained(folder: Path) -> None:
    weighted(folder, lambda tensors: tensors[UP].fill_(torch.nan))
    config = ModelConfig.model_validate({"path": str(folder), "device": "cpu"})
    with pytest.raises(TrainerError, match=f"the LlamaForCausalLM in {folder} is not finite"):
        PolicyModel.load(folder, config, seed=0)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\udcff"])
def test_a_damaged_configuration_is_named_before_anything_is_loaded(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"model/config\.json (is damaged|holds no JSON object)") as refused:
        resolve_model(str(folder))
    in_two_sentences(refused.value)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_of_the_tokenizer_is_named(folder: Path, file: str) -> None:
    (folder / file).write_text("{")
    with pytest.raises(ConfigError, match=f"has no tokenizer that loads: {file} is damaged") as refused:
        ModelTokenizer.load(folder)
    in_two_sentences(refused.value)


def in_two_sentences(error: AstuneError) -> None:
    assert "\n" not in error.message
    assert ". " not in error.message
    assert error.hint


def test_weights_beside_the_layers_may_serve_something_else(folder: Path) -> None:
    weighted(folder, lambda tensors: tensors.update({"score.weight": torch.zeros(1, 64)}))
    model = load_causal_lm(folder, torch.bfloat16, error=EngineError)
    assert "score.weight" not in model.state_dict()
