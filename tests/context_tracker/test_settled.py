"""What of an unfinished answer may be streamed: always the beginning of what is read at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from family_templates import ENDS, family_renderer
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.renderers import Renderer, Tool, load_renderer
from astune.renderers.template_renderer import TemplateRenderer

ASK = [{"role": "user", "content": "Where is it warm?"}]
TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = '{"name": "look", "arguments": {"city": "Rome"}}'
PIECES = [
    "It is warm.",
    " 漢字🙂",
    "\n\n",
    "  ",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    f"<tool_call>\n{CALL}\n</tool_call>",
    CALL,
    "<tool",
    "<",
    "[TOOL_CALLS]",
    "<function=look>",
    "<|channel|>",
    "analysis",
    "<|message|>",
    "{",
]
ANSWERS = st.lists(st.sampled_from(PIECES), max_size=8)


def streamed_is_a_beginning(renderer: Renderer, answer: list[str], tools: list[Tool], *, spelled: bool) -> list[str]:
    """Checks every beginning of the answer; returns what was settled of its content."""
    template = renderer._template if isinstance(renderer, TemplateRenderer) else None
    assert template is not None
    encode = template.encode_plain if spelled else template.encode
    sampled = [token for piece in answer for token in encode(piece)] + [renderer.stop_token_ids[0]]
    prompt = renderer.render(ASK, tools).token_ids
    whole = renderer.parse(sampled, prompt, tools)
    settled = [renderer.settled(sampled[:n], prompt, tools) for n in range(len(sampled) + 1)]
    for part in settled:
        assert (whole.reasoning or "").startswith(part.reasoning)
        assert whole.content.startswith(part.content)
    return [part.content for part in settled]


@pytest.mark.parametrize("family", list(ENDS))
@pytest.mark.parametrize("spelled", [False, True], ids=["control tokens", "letters"])
@settings(max_examples=40, deadline=None)
@given(answer=ANSWERS, offered=st.booleans())
def test_what_is_streamed_is_never_taken_back(
    family: str, spelled: bool, smol_folder: Path, answer: list[str], offered: bool
) -> None:
    streamed_is_a_beginning(family_renderer(family, smol_folder), answer, TOOLS if offered else [], spelled=spelled)


@pytest.fixture(scope="module")
def small_models(smol_folder: Path) -> Renderer:
    return load_renderer(smol_folder)


@settings(max_examples=40, deadline=None)
@given(answer=ANSWERS, offered=st.booleans())
def test_the_small_models_stream_is_never_taken_back(small_models: Renderer, answer: list[str], offered: bool) -> None:
    streamed_is_a_beginning(small_models, answer, TOOLS if offered else [], spelled=False)


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "qwen3_instruct_2507", "llama3", "llama3_2", "gemma3"])
def test_text_is_settled_as_it_is_sampled(family: str, smol_folder: Path) -> None:
    renderer = family_renderer(family, smol_folder)
    tools = [] if family == "llama3" else TOOLS
    thought = ["<think>", "warm?", "</think>"] if family == "qwen3" else []
    settled = streamed_is_a_beginning(renderer, [*thought, "It", " is", " warm", " in", " Rome"], tools, spelled=False)
    assert len(set(settled)) >= 4, settled


def test_a_call_is_not_settled_before_it_is_read(smol_folder: Path) -> None:
    renderer = family_renderer("qwen2_5", smol_folder)
    settled = streamed_is_a_beginning(renderer, ["I see. ", f"<tool_call>{CALL}</tool_call>"], TOOLS, spelled=False)
    assert settled[-1] == "I see."
