"""Model families by their own templates: what can be extended, what is rewritten, and how answers are read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from family_templates import ENDS, family_template

from astune.context_tracker import ContextTracker
from astune.context_tracker.template_check import CONVERSATIONS, TOOLS, check_template
from astune.context_tracker.template_renderer import TemplateRenderer
from astune.schema import Completion, Message

ALWAYS_EXTENDED = {"qwen2_5", "qwen3_instruct_2507", "llama3", "llama3_2", "gemma3"}
"""Families whose templates never rewrite history."""
REFUSED = {
    "gemma3": {"two users' messages in a row"},  # roles have to take turns
    "llama3_2": {"two calls and their results"},  # one call at a time
}
PLAIN_TOOLS = {"llama3", "gemma3", "deepseekv3"}
"""Families whose templates describe no tools."""


@pytest.fixture(params=list(ENDS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def renderer(family: str, smol_folder: Path) -> TemplateRenderer:
    return TemplateRenderer(family_template(family, smol_folder))


def test_an_extension_is_a_whole_render_or_says_that_history_is_rewritten(family: str, smol_folder: Path) -> None:
    extensions = list(check_template(family_template(family, smol_folder)))
    outcomes = Counter(extension.outcome for extension in extensions)
    assert outcomes["differs"] == 0, [e for e in extensions if e.outcome == "differs"]
    assert {e.conversation for e in extensions if e.outcome == "refused"} == REFUSED.get(family, set())
    assert (outcomes["rewritten"] == 0) == (family in ALWAYS_EXTENDED)
    if family not in ALWAYS_EXTENDED:
        assert outcomes["rewritten"] > 0
    if family != "deepseekv3":  # opens every answer with a thought that it drops from history
        assert outcomes["equal"] > 0


def test_calls_are_read_as_the_template_writes_them(family: str, renderer: TemplateRenderer) -> None:
    [ask, called] = CONVERSATIONS["a tool call and its result"][:2]
    asked = renderer.render([ask], TOOLS).token_ids
    sampled = renderer.answer_ids([ask, called], TOOLS)
    reply = renderer.parse(sampled, asked, TOOLS)
    assert [(name, json.loads(arguments)) for name, arguments in reply.tool_calls] == [("weather", {"city": "Oslo"})]
    assert reply.malformed == []
    assert ("You can call these tools:" in renderer.decode(asked)) == (family in PLAIN_TOOLS)


def test_a_call_that_breaks_off_is_reported_and_kept_as_text(renderer: TemplateRenderer, family: str) -> None:
    if family == "llama3_2":
        pytest.skip("its calls are plain JSON without a mark, so that a broken one is text")
    [ask, called] = CONVERSATIONS["a tool call and its result"][:2]
    asked = renderer.render([ask], TOOLS).token_ids
    whole = renderer.answer_ids([ask, called], TOOLS)
    text = renderer.decode(whole)
    broken = renderer._template.encode(text[: text.index("Oslo")])
    reply = renderer.parse(broken, asked, TOOLS)
    assert reply.tool_calls == []
    assert len(reply.malformed) == 1
    assert reply.malformed[0] in reply.content


def test_an_agent_with_tools_is_recorded_call_by_call(renderer: TemplateRenderer) -> None:
    tracker = ContextTracker(renderer, 10_000)
    script = CONVERSATIONS["a tool call and its result"]
    history: list[Message] = []
    calls: list[tuple[list[int], Completion]] = []
    for message in script:
        if message["role"] != "assistant":
            history.append(dict(message))
            continue
        pending = tracker.prepare(history, TOOLS, agent="agent", trainable=True)
        token_ids = renderer.answer_ids([*history, message], TOOLS)
        completion = Completion(token_ids, [-1.0] * len(token_ids), "stop", 0)
        calls.append((pending.prompt_ids, completion))
        answer = tracker.commit(pending, completion)
        history.append(answer)
        for call, result in zip(answer.get("tool_calls", []), script[2:3], strict=False):
            script[2:3] = [{**result, "tool_call_id": call["id"]}]
    assert [(prompt, completion) for _, prompt, completion in tracker.forest.replay()] == calls
    assert {node.fork_cause for node in tracker.forest.nodes} <= {None, "template rewrote history"}
