"""Laws 1 to 3 as properties: random conversations, edited, cut and continued, over random sampled tokens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from family_templates import family_template
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from passing_renderer import PassingRenderer

from astune.context_tracker import ContextTracker, PendingCall, faults
from astune.engine.base import EngineStats
from astune.engine.scripted import made_up_logprob
from astune.renderers import Comparison, Rendered, Renderer, Tool, canonical, conversations
from astune.renderers.template_check import CONVERSATIONS, TOOLS
from astune.renderers.template_renderer import TemplateRenderer
from astune.rollout import token_balance
from astune.schema import (
    Completion,
    ContextOverflow,
    Episode,
    EpisodeGroup,
    Message,
    Task,
    WorkflowError,
)

ROOMY = 1 << 20
ADD: Tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
LAX = settings(max_examples=examples(120), suppress_health_check=[HealthCheck.function_scoped_fixture])

texts = st.text(max_size=12)
answers = st.tuples(st.lists(st.integers(0, 49151), max_size=6), st.sampled_from(["end", "start", "length"]))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("user"), texts),
        st.tuples(st.just("pasted"), texts),
        st.tuples(st.just("call"), answers),
        st.tuples(st.just("call"), answers),
        st.tuples(st.just("edit"), st.integers(0, 9)),
        st.tuples(st.just("drop"), st.integers(0, 9)),
        st.tuples(st.just("rewind"), st.integers(0, 9)),
    ),
    min_size=2,
    max_size=14,
)


@dataclass
class CountingRenderer(PassingRenderer):
    """The real renderer, and how many messages it was asked to render."""

    rendered: int = 0

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Rendered:
        self.rendered += len(messages)
        return super().render(messages, tools)

    def extend(
        self, history: Sequence[Message], sampled_ids: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]
    ) -> Rendered | None:
        self.rendered += len(new)
        return super().extend(history, sampled_ids, new, tools)


@dataclass
class Conversation:
    """An agent with its history; every call is remembered as the engine saw it."""

    renderer: CountingRenderer
    tracker: ContextTracker
    history: list[Message] = field(default_factory=list)
    calls: list[tuple[list[int], Completion]] = field(default_factory=list)
    edits: int = 0

    def call(self, answer: tuple[list[int], str]) -> PendingCall:
        pending = self.tracker.prepare(self.history, agent="agent", trainable=True)
        completion = self.complete(*answer)
        self.calls.append((pending.prompt_ids, completion))
        self.history.append(self.tracker.commit(pending, completion))
        return pending

    def complete(self, token_ids: list[int], ending: str) -> Completion:
        stops = self.renderer.stop_token_ids
        token_ids = [token for token in token_ids if token not in stops]
        token_ids += {"end": [stops[0]], "start": [stops[1]], "length": [] if token_ids else [5]}[ending]
        logprobs = [made_up_logprob(token, at, len(self.calls)) for at, token in enumerate(token_ids)]
        return Completion(token_ids, logprobs, "length" if ending == "length" else "stop", len(self.calls))

    def do(self, operation: tuple[str, Any]) -> None:
        kind, value = operation
        if kind == "user":
            self.history.append({"role": "user", "content": value})
        elif kind == "pasted":
            self.history.append({"role": "assistant", "content": value})
        elif kind == "call" and self.history:
            self.call(value)
        elif kind == "edit" and self.history:
            at = value % len(self.history)
            self.edits += 1
            self.history[at] = self.history[at] | {"content": f"edit {self.edits}"}
        elif kind == "drop" and self.history:
            del self.history[value % len(self.history)]
        elif kind == "rewind":
            del self.history[value % (len(self.history) + 1) :]


def new_conversation(renderer: Renderer) -> Conversation:
    counting = CountingRenderer(renderer)
    return Conversation(counting, ContextTracker(counting, ROOMY))


@LAX
@given(turns=st.lists(st.tuples(st.lists(texts, min_size=1, max_size=3), answers), min_size=1, max_size=5))
def test_the_next_prompt_is_the_stored_tokens_and_the_delta_of_what_is_new(
    renderer: Renderer, turns: list[tuple[list[str], tuple[list[int], str]]]
) -> None:
    talk = new_conversation(renderer)
    before: list[int] = []
    for users, answer in turns:
        new: list[Message] = [{"role": "user", "content": text} for text in users]
        history, talk.history = talk.history, [*talk.history, *new]
        if talk.calls:
            added = renderer.extend(history, talk.calls[-1][1].token_ids, new, ())
            assert added is not None
        else:
            added = renderer.render(new, ())
        expected = [*before, *added.token_ids]
        assert talk.call(answer).prompt_ids == expected
        before = [*expected, *talk.calls[-1][1].token_ids]
    forest = talk.tracker.forest
    assert [node.fork_cause for node in forest.nodes] == [None] * len(forest.nodes)
    [timeline] = forest.timelines()
    assert timeline.token_ids == before
    assert talk.renderer.rendered == sum(len(users) for users, _ in turns), "the cost of a call is in its new messages"


@LAX
@given(steps=operations)
def test_replaying_the_forest_reproduces_every_call(renderer: Renderer, steps: list[tuple[str, Any]]) -> None:
    talk = new_conversation(renderer)
    for step in steps:
        talk.do(step)
    forest = talk.tracker.forest
    assert [(prompt, completion) for _, prompt, completion in forest.replay()] == talk.calls
    read = [(node.parent, node.role, node.content) for node in forest.nodes if not node.sampled]
    assert len(set(read)) == len(read), "each message is stored once"
    children = {node.parent: sum(other.parent == node.parent for other in forest.nodes) for node in forest.nodes}
    for node in forest.nodes:
        assert node.parent is None or node.parent < node.node_id
        if children[node.parent] == 1:
            assert node.fork_cause is None
    assert sum(node.fork_cause is None for node in forest.nodes) == len(children), "every branch but the first says why"


@LAX
@given(steps=operations, trained=st.booleans(), dropped=st.sampled_from([None, "group has no variance"]))
def test_every_sampled_token_is_in_one_account(
    renderer: Renderer, steps: list[tuple[str, Any]], trained: bool, dropped: str | None
) -> None:
    talk = new_conversation(renderer)
    for step in steps:
        talk.do(step)
    forest = talk.tracker.forest
    for node in forest.nodes:
        node.trainable = node.sampled and trained
    task = Task(task_id="t", main_query="q")
    episode = Episode("e", task, "train", 1, 0, 1, 0, forest, "failed")
    sampled = sum(len(completion.token_ids) for _, completion in talk.calls)
    balance = token_balance([EpisodeGroup(task, [episode], dropped=dropped)], EngineStats(sampled_tokens=sampled))
    assert balance.difference == 0
    assert balance.trained == (sampled if trained and dropped is None else 0)
    assert balance.trained == (sum(timeline.n_trained for timeline in episode.timelines) if dropped is None else 0)


@LAX
@given(steps=operations)
def test_the_judge_reads_the_same_timelines_as_messages(renderer: Renderer, steps: list[tuple[str, Any]]) -> None:
    talk = new_conversation(renderer)
    for step in steps:
        talk.do(step)
    timelines = talk.tracker.forest.timelines()
    grouped = conversations(talk.tracker.forest)
    assert [len(timeline_messages) for timeline_messages in grouped] == [
        len({span.node_id for span in timeline.spans}) for timeline in timelines
    ]


def talked(renderer: Renderer) -> Conversation:
    """S U1 A1 U2 A2, recorded."""
    talk = new_conversation(renderer)
    talk.history = [{"role": "system", "content": "S"}, {"role": "user", "content": "U1"}]
    talk.call(([100, 101], "end"))
    talk.history.append({"role": "user", "content": "U2"})
    talk.call(([200, 201, 202], "end"))
    return talk


CAUSES = {
    "message edited": lambda h: [h[0], {"role": "user", "content": "U1*"}, *h[2:4]],
    "message dropped": lambda h: [h[0], *h[3:4]],
    "message inserted": lambda h: [h[0], {"role": "user", "content": "hint"}, *h[1:4]],
    "history cut": lambda h: [{"role": "system", "content": "S"}],
    "history replaced": lambda h: [{"role": "user", "content": "new"}],
    "sampled again": lambda h: h[:2],
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_branch_says_why_it_left(cause: str, renderer: Renderer) -> None:
    talk = talked(renderer)
    talk.history = CAUSES[cause](talk.history)
    stored = len(talk.tracker.forest.nodes)
    talk.call(([300], "end"))
    assert talk.tracker.forest.nodes[stored].fork_cause == cause
    assert [node.fork_cause for node in talk.tracker.forest.nodes[stored + 1 :]] == [None] * (
        len(talk.tracker.forest.nodes) - stored - 1
    )


def test_tools_and_other_agents_branch_with_their_cause(renderer: Renderer) -> None:
    talk = talked(renderer)
    pending = talk.tracker.prepare(talk.history, [ADD], agent="agent", trainable=True)
    talk.tracker.commit(pending, talk.complete([1000], "end"))
    pending = talk.tracker.prepare([{"role": "user", "content": "X"}], agent="other", trainable=False)
    talk.tracker.commit(pending, talk.complete([1001], "end"))
    causes = [node.fork_cause for node in talk.tracker.forest.nodes if node.fork_cause]
    assert causes == ["tools changed", "another agent"]


def said_by(talk: Conversation, agent: str, messages: list[dict[str, Any]], tools: Sequence[Any] = ()) -> str | None:
    """The cause of the branch that this call makes."""
    stored = len(talk.tracker.forest.nodes)
    pending = talk.tracker.prepare(messages, tools, agent=agent, trainable=True)
    talk.tracker.commit(pending, talk.complete([stored + 1000], "end"))
    return talk.tracker.forest.nodes[stored].fork_cause


def test_a_branch_is_explained_by_its_own_agents_earlier_ones(renderer: Renderer) -> None:
    talk = talked(renderer)
    asked = talk.history[:2]
    assert said_by(talk, "other", asked) == "another agent", "the other one never asked this before"
    assert said_by(talk, "other", asked) == "sampled again"
    assert said_by(talk, "third", [{"role": "user", "content": "X"}]) == "another agent"
    assert said_by(talk, "agent", asked, [ADD]) == "tools changed", "the newest root is the third agent's"
    assert said_by(talk, "agent", [talk.history[0], {"role": "user", "content": "summary"}]) == "message edited"
    inserted = [talk.history[0], {"role": "user", "content": "hint"}, *talk.history[1:4]]
    assert said_by(talk, "agent", inserted) == "message inserted", "seen from the branch before the summary"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ({"role": "user", "content": "Hi"}, "instead of a list"),
        ("Hi", "instead of a list"),
    ],
)
def test_what_is_no_list_of_messages_is_refused_at_every_call(renderer: Renderer, messages: Any, says: str) -> None:
    talk = talked(renderer)
    with pytest.raises(WorkflowError, match=says):
        talk.tracker.prepare(messages, agent="agent", trainable=True)


def test_half_a_character_is_read_as_the_replacement_character(renderer: Renderer) -> None:
    """A model writes it as an escape of JSON, an agent cuts a text within an emoji: neither is a failure."""
    tracker = ContextTracker(renderer, 2000)
    ask = {"role": "user", "content": "cut: \ud83d"}
    pending = tracker.prepare([ask], agent="a", trainable=True)
    assert "cut: \ufffd" in renderer.decode(pending.prompt_ids)
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    pending = tracker.prepare([ask], [tool], agent="a", trainable=True)
    encode = renderer._template.encode  # type: ignore[attr-defined]
    text = '<tool_call>{"name": "add\\ud800", "arguments": {"x": ["\\udfff"]}}</tool_call>'
    nameless = '<tool_call>{"name": " ", "arguments": {}}</tool_call>'
    ids = encode(text + nameless)
    answer = tracker.commit(pending, Completion(ids, [-1.0] * len(ids), "stop", 0))
    (call,) = answer["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("add\ufffd", '{"x": ["\ufffd"]}')
    assert answer["content"] == nameless
    assert tracker.forest.nodes[-1].malformed_calls == [nameless]
    tracker.prepare(
        [ask, answer, {"role": "tool", "tool_call_id": call["id"], "content": "\udc00"}],
        [tool],
        agent="a",
        trainable=True,
    )


def test_an_answer_that_opens_the_next_turn_has_opened_it(renderer: Renderer) -> None:
    """`<|im_start|><|im_end|>` stood in the history, a turn of nobody."""
    tracker = ContextTracker(renderer, 2000)
    ask = {"role": "user", "content": "Hi"}
    pending = tracker.prepare([ask], agent="a", trainable=True)
    ids = renderer._template.encode("Yes<|im_start|>")  # type: ignore[attr-defined]
    assert ids[-1] in renderer.stop_token_ids
    answer = tracker.commit(pending, Completion(ids, [-1.0] * len(ids), "stop", 0))
    assert answer["content"] == "Yes"
    following = tracker.prepare([ask, answer, {"role": "user", "content": "And?"}], agent="a", trainable=True)
    text = renderer.decode(following.prompt_ids)
    assert text.endswith("assistant\nYes<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n")
    assert following.prompt_ids[len(pending.prompt_ids) :][: len(ids)] == ids


def test_pasted_text_is_no_sample_and_trained_answers_are_trained_once(renderer: Renderer) -> None:
    talk = talked(renderer)
    talk.history[1] = {"role": "user", "content": "U1*"}
    talk.call(([300], "end"))
    first, second = talk.tracker.forest.timelines()
    assert (first.n_trained, second.n_trained) == (3 + 4, 2)
    assert [span.role for span in second.spans if span.sampled] == ["assistant"]


@pytest.mark.parametrize("name", [None, "solver"])
@pytest.mark.parametrize(
    "as_blocks", [lambda text: text, lambda text: [{"type": "text", "text": text}], lambda text: [{"text": text}]]
)
def test_an_answer_comes_back_as_the_sample_however_the_agent_writes_it(
    renderer: Renderer, name: str | None, as_blocks: Any
) -> None:
    talk = new_conversation(renderer)
    talk.history = [{"role": "user", "content": "U1"}]
    talk.call(([100, 101], "end"))
    answer = talk.history[-1]
    talk.history[-1] = {"role": "assistant", "content": as_blocks(answer["content"]), "name": name, "tool_calls": None}
    talk.history.append({"role": "user", "content": "U2"})
    talk.call(([102], "end"))
    assert len(talk.tracker.forest.nodes) == 4
    assert len(talk.tracker.forest.timelines()) == 1


def test_a_prompt_that_leaves_no_room_overflows_and_leaves_no_trace(renderer: Renderer) -> None:
    tracker = ContextTracker(renderer, 40)
    with pytest.raises(ContextOverflow, match="raise rollout"):
        tracker.prepare([{"role": "user", "content": "word " * 40}], agent="agent", trainable=True)
    assert tracker.forest.nodes == []


@pytest.mark.parametrize(
    "message", ["hi", {"content": "no role"}, {"role": "user", "content": [{"type": "image", "source": "x"}]}]
)
def test_what_is_no_text_message_is_refused(message: Any, renderer: Renderer) -> None:
    with pytest.raises(WorkflowError):
        ContextTracker(renderer, ROOMY).prepare([message], agent="agent", trainable=True)


def test_calls_from_many_threads_keep_the_record_whole(renderer: Renderer) -> None:
    tracker = ContextTracker(renderer, ROOMY)
    made = Conversation(CountingRenderer(renderer), tracker)
    calls: list[tuple[list[int], list[int]]] = []

    def talk(agent: int) -> None:
        history: list[Message] = [{"role": "system", "content": "S"}, {"role": "user", "content": f"U{agent % 3}"}]
        for turn in range(5):
            pending = tracker.prepare(history, agent=f"agent {agent}", trainable=True)
            completion = made.complete([100 + agent, 200 + turn], "end")
            history += [tracker.commit(pending, completion), {"role": "user", "content": f"next {turn}"}]
            calls.append((pending.prompt_ids, completion.token_ids))

    threads = [threading.Thread(target=talk, args=(agent,)) for agent in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    replayed = [(prompt, completion.token_ids) for _, prompt, completion in tracker.forest.replay()]
    assert sorted(replayed) == sorted(calls)
    assert sum(node.content == "S" for node in tracker.forest.nodes) == 1


async def test_calls_at_once_on_one_history_are_each_recorded(renderer: Renderer) -> None:
    talk = new_conversation(renderer)
    history: list[Message] = [{"role": "user", "content": "U"}]

    async def one(token: int) -> None:
        pending = talk.tracker.prepare(history, agent="agent", trainable=True)
        await asyncio.sleep(0)
        talk.tracker.commit(pending, talk.complete([token], "end"))

    await asyncio.gather(*(one(100 + i) for i in range(8)))
    nodes = talk.tracker.forest.nodes
    assert len(nodes) == 9
    assert [node.fork_cause for node in nodes[2:]] == ["sampled again"] * 7


def reworded(message: Message) -> Message:
    """The same text under another name."""
    return message | {"name": "someone"}


@pytest.mark.parametrize("level", ["token", "text"])
def test_a_relaxed_comparison_goes_on_and_counts_what_it_passed_over(renderer: Renderer, level: Any) -> None:
    tracker = ContextTracker(renderer, ROOMY, Comparison(level, ignore_tools=level == "text"))
    made = Conversation(CountingRenderer(renderer), tracker)
    history: list[Message] = [{"role": "user", "content": "U1"}]
    pending = tracker.prepare(history, [ADD], agent="agent", trainable=True)
    history.append(tracker.commit(pending, made.complete([100], "end")))
    history = [reworded(history[0]), history[1], {"role": "user", "content": "U2"}]
    pending = tracker.prepare(history, agent="agent", trainable=True)
    tracker.commit(pending, made.complete([101], "end"))
    assert len(tracker.forest.timelines()) == (2 if level == "token" else 1)
    assert tracker.relaxed == (0 if level == "token" else 2), "a name, and tools that are no longer offered"


def test_an_agent_may_leave_out_what_the_model_thought(smol_folder: Path) -> None:
    renderer = TemplateRenderer(family_template("qwen3", smol_folder))
    tracker = ContextTracker(renderer, ROOMY)
    script = CONVERSATIONS["reasoning between tool calls"]
    history: list[Message] = []
    for message in script:
        if message["role"] != "assistant":
            history.append(message | {"tool_call_id": history[-1]["tool_calls"][0]["id"]} if history else message)
            continue
        pending = tracker.prepare(history, TOOLS, agent="agent", trainable=True)
        ids = renderer.answer_ids([*history, message], TOOLS)
        answer = tracker.commit(pending, Completion(ids, [-1.0] * len(ids), "stop", 0))
        assert answer["reasoning_content"] == message["reasoning_content"]
        history.append({key: answer[key] for key in answer if key != "reasoning_content"})
    [timeline] = tracker.forest.timelines()
    assert timeline.n_trained == sum(node.n_sampled for node in tracker.forest.nodes)


def test_a_template_that_drops_reasoning_branches_with_its_cause(smol_folder: Path) -> None:
    renderer = TemplateRenderer(family_template("qwen3", smol_folder))
    tracker = ContextTracker(renderer, ROOMY)
    [ask, answer, again] = CONVERSATIONS["reasoning, then another question"]
    pending = tracker.prepare([ask], agent="agent", trainable=True)
    ids = renderer.answer_ids([ask, answer], ())
    said = tracker.commit(pending, Completion(ids, [-1.0] * len(ids), "stop", 0))
    pending = tracker.prepare([ask, said, again], agent="agent", trainable=True)
    tracker.commit(pending, Completion(ids, [-1.0] * len(ids), "stop", 0))
    assert "The sky is blue." not in renderer.decode(pending.prompt_ids)
    assert [node.fork_cause for node in tracker.forest.nodes if node.fork_cause] == ["template rewrote history"]
    first, second = tracker.forest.timelines()
    assert (first.n_trained, second.n_trained) == (len(ids), len(ids))


def test_messages_that_are_changed_in_place_are_noticed(renderer: Renderer) -> None:
    talk = talked(renderer)
    talk.history[1]["content"] = "changed"
    talk.call(([300], "end"))
    assert [node.fork_cause for node in talk.tracker.forest.nodes if node.fork_cause] == ["message edited"]


@LAX
@given(steps=operations)
def test_a_recorded_forest_renders_again_token_for_token(renderer: Renderer, steps: list[tuple[str, Any]]) -> None:
    talk = new_conversation(renderer)
    for step in steps:
        talk.do(step)
    assert list(faults(talk.tracker.forest, renderer)) == []


def test_a_record_that_was_tampered_with_has_its_fault_named(renderer: Renderer) -> None:
    forest = talked(renderer).tracker.forest
    forest.nodes[3].token_ids[-1] += 1
    assert [fault.partition(" from token")[0] for fault in faults(forest, renderer)] == ["node 4: its prompt differs"]
    forest.nodes[2].logprobs = [1.0]
    assert "node 2: its log-probabilities are none" in list(faults(forest, renderer))


def test_each_agent_goes_on_from_its_own_answer_though_another_said_the_same(renderer: Renderer) -> None:
    tracker = ContextTracker(renderer, ROOMY)
    ask: list[Message] = [{"role": "user", "content": "Ready?"}]
    letters = [renderer.render([{"role": "user", "content": letter}], ()).deltas[0][-1] for letter in "yes"]
    word = renderer.render([{"role": "user", "content": "yes"}], ()).deltas[0][-1:]
    spellings = {"alice": letters, "bob": word}
    assert renderer.decode(letters) == renderer.decode(word)
    said: dict[str, Message] = {}
    for agent, ids in spellings.items():
        pending = tracker.prepare(ask, agent=agent, trainable=True)
        said[agent] = tracker.commit(pending, Completion(ids, [-1.0] * len(ids), "length", 0))
    for agent, ids in spellings.items():
        pending = tracker.prepare([*ask, said[agent], ask[0]], agent=agent, trainable=True)
        assert tracker.forest.nodes[pending.parent or 0].agent == agent
        assert ids == pending.prompt_ids[len(renderer.render(ask, ()).token_ids) :][: len(ids)]


def test_an_answer_on_another_branch_is_found_though_the_agents_last_call_was_elsewhere(renderer: Renderer) -> None:
    talk = talked(renderer)
    long = list(talk.history)
    talk.history = long[:2]
    talk.call(([300], "end"))
    talk.history = [*long, {"role": "user", "content": "U3"}]
    assert talk.call(([301], "end")).parent == 4, "the second answer of the first branch"


def test_what_the_agent_does_to_an_answer_does_not_reach_the_record(smol_folder: Path) -> None:
    renderer = TemplateRenderer(family_template("qwen2_5", smol_folder))
    tracker = ContextTracker(renderer, ROOMY)
    [ask, called] = CONVERSATIONS["a tool call and its result"][:2]
    tools = [dict(tool) for tool in TOOLS]
    pending = tracker.prepare([ask], tools, agent="agent", trainable=True)
    ids = renderer.answer_ids([ask, called], tools)
    answer = tracker.commit(pending, Completion(ids, [-1.0] * len(ids), "stop", 0))
    answer["tool_calls"][0]["function"]["arguments"] = {}
    tools.clear()
    assert list(faults(tracker.forest, renderer)) == []
    assert len(tracker.forest.nodes[0].tools) == 2


def test_one_is_not_true(renderer: Renderer) -> None:
    tracker = ContextTracker(renderer, ROOMY)
    history: list[Message] = [
        {"role": "user", "content": "U"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"n": 1}}}],
        },
        {"role": "tool", "content": "R", "tool_call_id": "1"},
    ]
    for value in (1, True):
        history[1]["tool_calls"][0]["function"]["arguments"]["n"] = value
        pending = tracker.prepare(history, agent="agent", trainable=True)
        tracker.commit(pending, Completion([100], [-1.0], "length", 0))
    assert [node.fork_cause for node in tracker.forest.nodes if node.fork_cause] == ["message edited"]


def test_a_call_without_content_keeps_its_calls(renderer: Renderer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert canonical({"role": "assistant", "tool_calls": [call]})["tool_calls"] == [call]


NOTHING: list[Any] = [None, [], [{"text": None}], [{"type": "text", "text": None}]]


@pytest.mark.parametrize("content", NOTHING)
def test_content_may_be_missing_beside_tool_calls_and_nowhere_else(content: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert canonical({"role": "assistant", "content": content, "tool_calls": [call]})["content"] == ""
    assert canonical({"role": "assistant", "content": content, "tool_calls": []})["content"] == ""
    for role in ("system", "user", "assistant", "tool"):
        with pytest.raises(WorkflowError, match=f"a message of role {role} has no content;"):
            canonical({"role": role, "content": content})


def test_a_message_that_keeps_its_text_elsewhere_is_refused_with_its_keys_and_the_formatters_that_work() -> None:
    with pytest.raises(
        WorkflowError, match=r"role user has no content, but the unknown keys 'extra', 'parts'"
    ) as error:
        canonical({"role": "user", "name": "bob", "parts": [{"text": "Hi"}], "extra": 1})
    assert "AgentScope's formatters, those of OpenAI (chat), DashScope, DeepSeek and Ollama" in str(error.value.hint)
