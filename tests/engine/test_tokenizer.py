"""A model's tokenizer without transformers: the same tokens as with it, and read anew when a file changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astune.engine.tokenizer import ModelTokenizer
from astune.renderers.template import ChatTemplate
from astune.schema import ConfigError

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
LOADED = """
import sys
from pathlib import Path
from astune.renderers import load_renderer
load_renderer(Path(sys.argv[1])).render([{"role": "user", "content": "Hello."}], ())
print([name for name in ("torch", "transformers") if name in sys.modules])
"""


@pytest.fixture(scope="module")
def theirs(smol_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smol_folder)


@pytest.fixture(scope="module")
def ours(smol_folder: Path) -> ModelTokenizer:
    return ModelTokenizer.load(smol_folder)


@pytest.fixture
def folder(tmp_path: Path, smol_folder: Path) -> Path:
    """The small model's tokenizer, without its weights."""
    made = tmp_path / "model"
    made.mkdir()
    for file in smol_folder.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, made)
    return made


@pytest.fixture
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("ASTUNE_CACHE", str(cache))
    return cache / "tokenizers"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(st.sampled_from(SPECIAL) | st.text(max_size=20), max_size=6).map("".join), added=st.booleans())
def test_tokens_are_those_of_transformers(ours: ModelTokenizer, theirs: Any, text: str, added: bool) -> None:
    ids = ours.encode(text, add_special_tokens=added)
    assert ids == theirs.encode(text, add_special_tokens=added)
    assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)


def test_names_are_those_of_transformers(ours: ModelTokenizer, theirs: Any) -> None:
    assert ours.special == theirs.special_tokens_map
    assert (ours.eos_token_id, ours.unk_token_id) == (theirs.eos_token_id, theirs.unk_token_id)
    assert ours.templates == {"default": theirs.chat_template}
    for token in (*SPECIAL, "the", "no such token"):
        assert ours.convert_tokens_to_ids(token) == theirs.convert_tokens_to_ids(token)


def test_a_model_that_was_read_before_is_rendered_without_transformers(smol_folder: Path) -> None:
    ModelTokenizer.load(smol_folder)
    command = [sys.executable, "-c", LOADED, str(smol_folder)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_process_parses_a_tokenizer_once(smol_folder: Path) -> None:
    backend = ModelTokenizer.load(smol_folder).backend
    assert ModelTokenizer.load(smol_folder).backend is backend


@pytest.mark.slow
def test_a_changed_file_is_read_anew(folder: Path, nothing_kept: Path) -> None:
    before = ModelTokenizer.load(folder)
    assert ModelTokenizer.load(folder).templates == before.templates
    assert len(list(nothing_kept.iterdir())) == 1
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert ModelTokenizer.load(folder).templates == {"default": "{{ messages[0].content }}"}
    assert len(list(nothing_kept.iterdir())) == 2


@pytest.mark.slow
def test_what_transformers_adds_to_the_file_is_there(folder: Path, nothing_kept: Path) -> None:
    settings_file = folder / "tokenizer_config.json"
    settings_file.write_text(json.dumps(json.loads(settings_file.read_text()) | {"pad_token": "<|a new one|>"}))
    tokenizer = ModelTokenizer.load(folder)
    assert tokenizer.special["pad_token"] == "<|a new one|>"
    assert len(tokenizer.encode("<|a new one|>")) == 1


@pytest.mark.slow
def test_the_template_for_tools_is_taken_where_there_are_tools(folder: Path, nothing_kept: Path) -> None:
    (folder / "chat_template.jinja").write_text("plain {{ messages[0].content }}")
    more = folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("{{ tools | length }} tools, {{ messages[0].content }}")
    template = ChatTemplate.load(folder)
    ask = [{"role": "user", "content": "hello"}]
    assert template.render(ask) == "plain hello"
    assert template.render(ask, [{"type": "function"}]) == "1 tools, hello"


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_told(folder: Path, nothing_kept: Path) -> None:
    nothing_kept.parent.write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match="cannot be kept") as told:
        ModelTokenizer.load(folder)
    assert "ASTUNE_CACHE" in told.value.hint


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path, nothing_kept: Path) -> None:
    with pytest.raises(ConfigError, match="has no tokenizer that loads"):
        ModelTokenizer.load(tmp_path)
