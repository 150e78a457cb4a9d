"""What of an unfinished answer may be streamed: always the beginning of what is read at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import examples, some
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
    "<tool_call>\n<function=look>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
    '<tool_call>{"name": "look", "arguments": {"city": "',
    '"}}</tool_call>',
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
    beginnings = [sampled[:n] for n in range(len(sampled) + 1)]
    settled = [renderer.settled(beginning, prompt, tools) for beginning in beginnings]
    with_calls = [renderer.settled(beginning, prompt, tools, calls=True) for beginning in beginnings]
    for part in [*settled, *with_calls * (not whole.malformed)]:
        assert (whole.reasoning or "").startswith(part.reasoning)
        assert whole.content.startswith(part.content)
        assert not part.calls or (whole.reasoning or "", whole.content) == part[:2], "a call follows its text"
        assert len(part.calls) <= len(whole.tool_calls)
        for call, (name, arguments) in zip(part.calls, whole.tool_calls, strict=False):
            assert call.name == name
            assert arguments.startswith(call.arguments)
    assert not any(part.calls for part in settled)
    return [part.content for part in settled]


@pytest.mark.parametrize("family", some(ENDS, 2))
@pytest.mark.parametrize("spelled", [False, True], ids=["control tokens", "letters"])
@settings(max_examples=examples(40), deadline=None)
@given(answer=ANSWERS, offered=st.booleans())
def test_what_is_streamed_is_never_taken_back(
    family: str, spelled: bool, smol_folder: Path, answer: list[str], offered: bool
) -> None:
    streamed_is_a_beginning(family_renderer(family, smol_folder), answer, TOOLS if offered else [], spelled=spelled)


@pytest.fixture(scope="module")
def small_models(smol_folder: Path) -> Renderer:
    return load_renderer(smol_folder)


@settings(max_examples=examples(40), deadline=None)
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


def settled_calls(renderer: Renderer, answer: str, sampled_as: str = "control tokens") -> list[tuple[str, ...]]:
    """What was settled of the calls' arguments with each token, without repetitions."""
    assert isinstance(renderer, TemplateRenderer)
    template = renderer._template
    sampled = (template.encode if sampled_as == "control tokens" else template.encode_plain)(answer)
    prompt = renderer.render(ASK, TOOLS).token_ids
    found = [renderer.settled(sampled[:n], prompt, TOOLS, calls=True) for n in range(len(sampled) + 1)]
    return list(dict.fromkeys(tuple(call.arguments for call in part.calls) for part in found))


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "qwen3_instruct_2507", "llama3", "gemma3"])
def test_the_arguments_of_calls_in_json_are_settled_in_pieces(family: str, smol_folder: Path) -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {"city": "Rome and all around it"}}\n</tool_call>'
    found = settled_calls(family_renderer(family, smol_folder), f"I look.{call}\n{call}")
    whole = '{"city": "Rome and all around it"}'
    assert found[:2] == [(), ("",)]
    assert found[-1] == (whole, whole)
    assert sum(len(calls) == 1 for calls in found) >= 5, found
    assert sum(len(calls) == 2 for calls in found) >= 5, found


def test_tags_in_a_text_of_the_arguments_are_text(smol_folder: Path) -> None:
    renderer = family_renderer("qwen3", smol_folder)
    assert isinstance(renderer, TemplateRenderer)
    template = renderer._template
    start, end = template.encode("<tool_call>"), template.encode("</tool_call>")
    written = '{"name": "look", "arguments": {"city": "</tool_call> <tool_call>"}}'
    sampled = [*start, *template.encode_plain(written), *end]
    prompt = renderer.render(ASK, TOOLS).token_ids
    (call,) = renderer.settled(sampled[:-4], prompt, TOOLS, calls=True).calls
    ((_, arguments),) = renderer.parse(sampled, prompt, TOOLS).tool_calls
    assert arguments.startswith(call.arguments)
    assert "</tool_call>" in call.arguments


def test_calls_that_spell_their_arguments_are_settled_when_they_are_closed(smol_folder: Path) -> None:
    call = "<function=look>\n<parameter=city>\nRome\n</parameter>\n</function>\n"
    answer = f"</think>\n\n<tool_call>{call}</tool_call>"
    assert settled_calls(family_renderer("qwen3_5_think", smol_folder), answer) == [(), ('{"city": "Rome"}',)]


@pytest.mark.parametrize(
    ("family", "answer"),
    [
        ("glm4moe", "</think>\n<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"),
        ("mistral_2025", '[TOOL_CALLS]look[ARGS]{"city": "Rome"}'),
        ("llama3_2", CALL),
    ],
)
def test_calls_of_which_nothing_is_certain_before_the_end_are_not_settled(
    family: str, answer: str, smol_folder: Path
) -> None:
    renderer = family_renderer(family, smol_folder)
    assert isinstance(renderer, TemplateRenderer)
    sampled = renderer._template.encode(answer)
    assert renderer.parse(sampled, renderer.render(ASK, TOOLS).token_ids, TOOLS).tool_calls
    assert settled_calls(renderer, answer) == [()]


def test_a_call_in_a_thought_is_not_settled(smol_folder: Path) -> None:
    renderer = family_renderer("qwen3", smol_folder)
    assert settled_calls(renderer, f"<think>Maybe <tool_call>{CALL}</tool_call>") == [()]
