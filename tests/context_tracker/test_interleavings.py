"""Laws 1 to 3 for several agents of one episode: parallel calls, retries, shared beginnings, tools, in any order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astune.context_tracker import ContextTracker, PendingCall, faults
from astune.engine.scripted import made_up_logprob
from astune.renderers import Comparison, Renderer, Tool
from astune.schema import Completion, Message

AGENTS = ("planner", "coder", "critic")
ADD: Tool = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TEXTS = (
    "",
    "yes",
    "\u00e9\U0001f600",
    CALL,
    f"{CALL}\n{CALL}\n{CALL}",
    "<tool_call>\n{broken",
    "ends <|im_start|> not",
)

agents, places = st.sampled_from(AGENTS), st.integers(0, 9)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("say"), agents, st.sampled_from(TEXTS)),
        st.tuples(st.just("paste"), agents, st.sampled_from(TEXTS)),
        st.tuples(st.just("share"), agents, agents),
        st.tuples(st.just("edit"), agents, places),
        st.tuples(st.just("drop"), agents, places),
        st.tuples(st.just("summarise"), agents, places),
        st.tuples(st.just("ask"), agents, st.booleans()),
        st.tuples(st.just("ask"), agents, st.booleans()),
        st.tuples(st.just("answer"), places, st.sampled_from(TEXTS)),
        st.tuples(st.just("answer"), places, st.sampled_from(TEXTS)),
        st.tuples(st.just("answer"), places, st.lists(st.integers(0, 49151), max_size=5)),
        st.tuples(st.just("results"), agents, st.integers(1, 3)),
    ),
    min_size=8,
    max_size=30,
)


@dataclass
class Stage:
    """Agents with their histories, and calls that are asked and not yet answered."""

    tokenizer: Any
    renderer: Renderer
    tracker: ContextTracker
    histories: dict[str, list[Message]] = field(default_factory=lambda: {agent: [] for agent in AGENTS})
    asked: list[tuple[str, list[Message], PendingCall]] = field(default_factory=list)
    calls: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def do(self, kind: str, who: Any, what: Any) -> None:
        history = self.histories.get(who, [])
        at = what % len(history) if history and isinstance(what, int) else 0
        match kind:
            case "say":
                history.append({"role": "user", "content": what})
            case "paste":
                history.append({"role": "assistant", "content": what})
            case "share":
                self.histories[who] = list(self.histories[what])
            case "edit" if history:
                history[at] = history[at] | {"content": f"edit {at}"}
            case "drop" if history:
                del history[at]
            case "summarise" if history:
                history[: at + 1] = [{"role": "user", "content": f"{at} messages ago we began."}]
            case "ask" if history:
                pending = self.tracker.prepare(history, [ADD] if what else [], agent=who, trainable=who != "critic")
                self.asked.append((who, list(history), pending))
            case "answer" if self.asked:
                self.answer(*self.asked.pop(who % len(self.asked)), what)
            case "results" if history and history[-1].get("tool_calls"):
                history += [
                    {"role": "tool", "content": f"{n}", "tool_call_id": call["id"], "name": "add"}
                    for n, call in enumerate(history[-1]["tool_calls"][:what])
                ]

    def answer(self, agent: str, then: list[Message], pending: PendingCall, said: str | list[int]) -> None:
        """The agent goes on with it, unless its history has changed since it asked, as after a retry."""
        stops = self.renderer.stop_token_ids
        ids = (
            self.tokenizer.encode(said, add_special_tokens=False, split_special_tokens=True)
            if isinstance(said, str)
            else said
        )
        ids = [*(token for token in ids if token not in stops), stops[0]]
        logprobs = [made_up_logprob(token, at, len(self.calls)) for at, token in enumerate(ids)]
        self.calls.append((pending.prompt_ids, ids))
        message = self.tracker.commit(pending, Completion(ids, logprobs, "stop", 0))
        if self.histories[agent] == then:
            self.histories[agent].append(message)


@settings(max_examples=examples(250), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=steps, ignore_tools=st.booleans())
def test_however_calls_interleave_every_token_is_recorded_as_it_was_read_and_trained_once(
    renderer: Renderer, tokenizer: Any, script: list[tuple[str, Any, Any]], ignore_tools: bool
) -> None:
    stage = Stage(tokenizer, renderer, ContextTracker(renderer, 1 << 20, Comparison(ignore_tools=ignore_tools)))
    for step in script:
        stage.do(*step)
    forest = stage.tracker.forest
    recorded = [(prompt_ids, completion.token_ids) for _, prompt_ids, completion in forest.replay()]
    assert recorded == stage.calls, "law 1: prompt and answer of every call stand in the record"
    assert list(faults(forest, renderer)) == [], "law 2: the record renders and reads again as it was"
    timelines = forest.timelines()
    trained = [
        span.node_id for timeline in timelines for span in timeline.spans if span.sampled and not span.mask_reason
    ]
    assert sorted(trained) == [node.node_id for node in forest.nodes if node.sampled and node.trainable], "law 3: once"
    assert sum(timeline.n_trained for timeline in timelines) == sum(
        node.n_sampled for node in forest.nodes if node.trainable
    )
    children: dict[int | None, list[str | None]] = {}
    for node in forest.nodes:
        children.setdefault(node.parent, []).append(node.fork_cause)
    for causes in children.values():
        assert causes[0] is None
        assert all(causes[1:]), "every branch says why"
