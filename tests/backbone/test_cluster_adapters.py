from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from astune.backbone.cluster.adapters import merge_adapters
from astune.config.schema import LoraConfig
from astune.schema import TrainerError
from astune.trainer.lora import add_adapters, merged_tensors


def test_adapters_are_added_to_the_weights_that_they_are_beside(tiny_folder: Path, tmp_path: Path) -> None:
    lora = LoraConfig(rank=4, alpha=8.0)
    module = add_adapters(AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32), lora, seed=1)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if ".lora_" in name:
                weight.normal_(std=0.05)
    saved, merged = tmp_path / "saved", tmp_path / "merged"
    saved.mkdir()
    names = {name: weight.clone() for name, weight in module.state_dict().items()}
    half = len(names) // 2
    for number, part in enumerate((list(names)[:half], list(names)[half:])):
        save_file({name: names[name] for name in part}, saved / f"model-{number}.safetensors")
    (saved / "config.json").write_text((tiny_folder / "config.json").read_text())
    (saved / "model.safetensors.index.json").write_text("{}")

    merge_adapters(saved, merged, scale=lora.alpha / lora.rank)

    found = load_file(merged / "model.safetensors")
    wanted = dict(merged_tensors(module))
    assert {*wanted} <= {*found}
    assert not any("lora" in name or "base_" in name for name in found)
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight)
    plain = load_file(tiny_folder / "model.safetensors")
    assert any(not torch.equal(found[name], plain[name].float()) for name in plain)
    assert not (merged / "model.safetensors.index.json").exists()
    AutoModelForCausalLM.from_pretrained(merged)


def test_a_model_without_adapters_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="has no adapters"):
        merge_adapters(tiny_folder, tmp_path / "merged", scale=1.0)
