"""A model whose folder brings code (`auto_map`): the code is never run, nobody is asked, and the error says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_helpers import load as as_served

from astune.config.schema import ModelConfig
from astune.engine.tokenizer import ModelTokenizer
from astune.schema import AstuneError
from astune.trainer.policy_model import PolicyModel


def as_trained(folder: Path) -> object:
    return PolicyModel.load(folder, ModelConfig(), seed=0)


@pytest.mark.parametrize("load", [as_served, as_trained, ModelTokenizer.load])
def test_code_in_a_models_folder_is_never_run(
    load: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, mark = tmp_path / "model", tmp_path / "mark"
    folder.mkdir()
    classes = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model", "AutoTokenizer": ["own.Tok", None]}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": classes}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": classes, "tokenizer_class": "Tok"}))
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda _: "y")
    with pytest.raises(AstuneError, match=r"auto_map.*never run"):
        load(folder)
    assert not mark.exists()
