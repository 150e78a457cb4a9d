"""Where a model's files come from, and what is said when they are not there."""

from pathlib import Path

import pytest

from astune.engine.model_files import resolve_model
from astune.schema import ConfigError


def test_an_unknown_builtin_model_names_the_known_ones():
    with pytest.raises(ConfigError, match="builtin:smollm2-135m"):
        resolve_model("builtin:gpt-7")


def test_a_path_that_is_nothing_says_what_it_could_be(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no folder, no \.gguf file and no hub id"):
        resolve_model(str(tmp_path / "nowhere"))


def test_a_missing_gguf_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"there is no file .*small\.gguf"):
        resolve_model(str(tmp_path / "small.gguf"))


def test_a_folder_without_a_tokenizer_is_refused_with_the_fix(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no tokenizer .*save_pretrained"):
        resolve_model(str(tmp_path))


@pytest.mark.slow
def test_the_builtin_model_is_a_complete_folder_and_is_converted_only_once(smol_folder: Path):
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {
        file.name for file in smol_folder.iterdir()
    }
    before = (smol_folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("builtin:smollm2-135m") == smol_folder
    assert (smol_folder / "model.safetensors").stat().st_mtime_ns == before
