"""A recorded episode, merged again under the policy of the recording, is the recorded forest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from family_templates import family_renderer

from astune.context_tracker import ContextTracker, faults, merged_again
from astune.renderers import Renderer, Tool
from astune.renderers.template_check import TOOLS
from astune.schema import Completion, Constraint, Message

ASK: Message = {"role": "user", "content": "What is 2 + 3?"}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "c00000000", "type": "function", "function": {"name": TOOLS[0]["function"]["name"], "arguments": "{}"}}
    ],
}


def completion(renderer: Renderer, history: Sequence[Message], tools: Sequence[Tool], keep: int | None) -> Completion:
    ids = renderer.answer_ids(history, tools)[:keep]
    return Completion(ids, [-0.5] * len(ids), "length" if keep else "stop", 3)


def test_requests_that_recorded_nothing_change_no_id(renderer: Renderer) -> None:
    tracker = ContextTracker(renderer, 1 << 20)
    for _ in range(3):  # its tokens were counted, or its agent hung up
        tracker.prepare([ASK], TOOLS, agent="agent", trainable=True)
    early = tracker.prepare([ASK], TOOLS, agent="other", trainable=True)
    pending = tracker.prepare([ASK], TOOLS, agent="agent", trainable=True)
    called = tracker.commit(pending, completion(renderer, [ASK, CALL], TOOLS, None))
    tracker.commit(early, completion(renderer, [ASK, CALL], TOOLS, None))
    result: Message = {"role": "tool", "content": "5", "tool_call_id": called["tool_calls"][0]["id"]}
    going_on = tracker.prepare([ASK, called, result], TOOLS, agent="agent", trainable=True)
    tracker.commit(going_on, completion(renderer, [ASK, CALL], TOOLS, None))
    again = merged_again(tracker.forest, renderer)
    assert again == tracker.forest
    assert [node.asked_after for node in again.nodes] == [node.asked_after for node in tracker.forest.nodes]
    assert not list(faults(again, renderer))


def test_a_forced_call_that_was_cut_stays_one(renderer: Renderer) -> None:
    tracker = ContextTracker(renderer, 1 << 20)
    pending = tracker.prepare([ASK], TOOLS, agent="agent", trainable=True, must_call=TOOLS)
    assert pending.form is not None
    whole = renderer.answer_ids([ASK, CALL], TOOLS)
    constraint = Constraint(pending.form, renderer.stop_token_ids)
    cut = tracker.commit(pending, completion(renderer, [ASK, CALL], TOOLS, len(whole) - 2), constraint)
    assert not cut.get("tool_calls")
    assert tracker.forest.nodes[-1].malformed_calls
    assert merged_again(tracker.forest, renderer) == tracker.forest
    assert not list(faults(tracker.forest, renderer))


def test_what_another_model_answered_stays_in_the_record(renderer: Renderer) -> None:
    tracker = ContextTracker(renderer, 1 << 20)
    pending = tracker.prepare([ASK], TOOLS, agent="agent", trainable=True)
    called = tracker.commit(pending, completion(renderer, [ASK, CALL], TOOLS, None))
    result: Message = {"role": "tool", "content": "5", "tool_call_id": called["tool_calls"][0]["id"]}
    others: Message = {"role": "assistant", "content": "Five, I think."}
    tracker.read([ASK, called, result, others], TOOLS, agent="agent")
    tracker.read([{"role": "user", "content": "And 4 + 4?"}, others], (), agent="agent")
    going_on = tracker.prepare([ASK, called, result, others, ASK], TOOLS, agent="agent", trainable=True)
    tracker.commit(going_on, completion(renderer, [ASK, CALL], TOOLS, None))
    assert merged_again(tracker.forest, renderer) == tracker.forest


def test_a_call_that_an_agent_writes_with_its_arguments_in_another_order_is_recorded_as_it_was_read(
    smol_folder: Path,
) -> None:
    """A call's tokens may come after its message's own, so that these are the same."""
    renderer = family_renderer("qwen3", smol_folder)
    tracker = ContextTracker(renderer, 1 << 20)
    result: Message = {"role": "tool", "content": "5", "tool_call_id": "c00000000"}
    for arguments in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
        function = {"name": "population", "arguments": json.dumps(arguments)}
        call = {**CALL, "tool_calls": [{"id": "c00000000", "type": "function", "function": function}]}
        pending = tracker.prepare([ASK, call, result], TOOLS, agent="agent", trainable=True)
        tracker.commit(pending, Completion([100, renderer.stop_token_ids[0]], [-0.5, -0.5], "stop", 3))
    assert list(faults(tracker.forest, renderer)) == []
    assert merged_again(tracker.forest, renderer) == tracker.forest
