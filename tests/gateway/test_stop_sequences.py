"""Stop sequences: the answer's text ends before one, sampling with it, and what was sampled stays the record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import zstandard
from rollout_stage import build_stage

from astune import AstuneProxy, Task, Workflow
from astune.context_tracker.merging import merged_again
from astune.context_tracker.replay import faults
from astune.engine.scripted import ScriptedEngine
from astune.renderers import Renderer
from astune.renderers.settled import Settled
from astune.renderers.stop_sequences import settled_before
from astune.runs import wire
from astune.schema import Episode

pytestmark = pytest.mark.usefixtures("each_way")
ASK: list[Any] = [{"role": "user", "content": "How many?"}]
TEXT = "Thought: add them, 漢字.\nObservation: 63\nThought: more"
SENT = "Thought: add them, 漢字.\n"
STOP = ["\nCode:", "Observation:"]
Agent = Callable[[AstuneProxy, bool], Awaitable[tuple[str, str | None]]]


async def by_openai(proxy: AstuneProxy, stream: bool) -> tuple[str, str | None]:
    client = proxy.as_openai_client()
    if not stream:
        answer = await client.chat.completions.create(model="m", messages=ASK, stop=STOP)
        return answer.choices[0].message.content or "", answer.choices[0].finish_reason
    text, ended = "", None
    async for chunk in await client.chat.completions.create(model="m", messages=ASK, stop=STOP, stream=True):
        text += chunk.choices[0].delta.content or ""
        ended = chunk.choices[0].finish_reason or ended
    return text, ended


async def by_anthropic(proxy: AstuneProxy, stream: bool) -> tuple[str, str | None]:
    client = proxy.as_anthropic_client()
    asked: Any = {"model": "m", "max_tokens": 90, "messages": ASK, "stop_sequences": STOP}
    if not stream:
        message = await client.messages.create(**asked)
    else:
        async with client.messages.stream(**asked) as events:
            message = await events.get_final_message()
    (block,) = message.content
    assert block.type == "text"
    assert message.stop_sequence == "Observation:"
    return block.text, message.stop_reason


async def in_python(proxy: AstuneProxy, stream: bool) -> tuple[str, str | None]:
    return (await proxy.aanswer(ASK, stop=STOP)).message["content"], "stop"


def played(renderer: Any, agent: Agent, stream: bool) -> tuple[Episode, list[Any], int]:
    said: list[Any] = []
    engine = ScriptedEngine(lambda *_: renderer.answer_ids([*ASK, {"role": "assistant", "content": TEXT}], []))

    class Flow(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            text, ended = await agent(proxy, stream)
            said.append((text, ended))
            more = [*ASK, {"role": "assistant", "content": text}, {"role": "user", "content": "63"}]
            await proxy.achat(more)

    stage = build_stage(renderer, Flow, engine=engine)
    return asyncio.run(stage.play_one()), said, engine.stats().sampled_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("agent", "reason"), [(by_openai, "stop"), (by_anthropic, "stop_sequence"), (in_python, "stop")]
)
def test_an_answer_ends_before_its_stop_sequence_and_is_gone_on_from(
    agent: Agent, reason: str, stream: bool, renderer: Renderer
) -> None:
    episode, said, sampled = played(renderer, agent, stream)
    assert episode.status == "success", episode.error
    assert said == [(SENT, reason)]
    stored = wire.unpack(wire.pack(wire.snapshot(episode), zstandard.ZstdCompressor()))
    first, second = [node for node in stored.forest.nodes if node.sampled]
    assert (first.content, first.stopped_by) == (SENT, "Observation:")
    assert renderer.text(first.token_ids[len(first.prompt_delta) :]).endswith("Observation:")
    assert second.stopped_by is None
    assert sampled == first.n_sampled + second.n_sampled, "nothing is sampled behind the sequence"
    assert not [node for node in stored.forest.nodes if node.fork_cause]
    assert not list(faults(stored.forest, renderer))
    assert merged_again(stored.forest, renderer) == stored.forest


def test_what_may_begin_a_sequence_is_not_streamed() -> None:
    assert settled_before(Settled("", "Yes. Obser"), STOP) == Settled("", "Yes. ")
    assert settled_before(Settled("", "Yes. Observed"), STOP) == Settled("", "Yes. Observed")
    assert settled_before(Settled("", "Yes.\nCode: 1"), STOP) == Settled("", "Yes.")


def test_a_finished_thought_is_not_held_back() -> None:
    assert settled_before(Settled("I Observ", "63"), STOP) == Settled("I Observ", "63")
