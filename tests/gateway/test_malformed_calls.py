"""Tool calls that cannot be read, under each policy."""

from __future__ import annotations

import logging
from typing import Any

import openai
import pytest
from rollout_stage import build_stage
from rollout_stage import task as task_of

from astune import AstuneProxy, Task, Workflow
from astune.renderers import Renderer
from astune.schema import Episode, MalformedCall

ASK: list[Any] = [{"role": "user", "content": "How many?"}]
ADD: Any = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
BROKEN = '<tool_call>\n{"name": "add", "arguments": {"a": 1,\n</tool_call>'


class Stubborn(Workflow):
    """Asks twice, whatever comes back, and says what it got."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        client = proxy.as_openai_client()
        got: list[str] = []
        for _ in range(2):
            try:
                answer = await client.chat.completions.create(model="m", messages=ASK, tools=[ADD])
                got.append(answer.choices[0].message.content or "")
            except openai.BadRequestError as refusal:
                got.append(str(refusal.code))
        proxy.update_judge_input_dictionary(got=got)


async def played(renderer: Any, policy: str, workflow: type[Workflow] = Stubborn) -> Episode:
    ids = renderer.answer_ids([*ASK, {"role": "assistant", "content": BROKEN}], [])
    stage = build_stage(renderer, workflow, replies=lambda *_: ids, malformed_tool_calls=policy)
    return await stage.play_one()


@pytest.mark.parametrize(
    ("policy", "got", "status", "sampled"),
    [
        ("as_text", [BROKEN] * 2, "success", 2),
        ("return_error", ["malformed_tool_call"] * 2, "success", 2),
        ("end_episode", ["malformed_tool_call"] * 2, "truncated", 1),
    ],
)
async def test_each_policy_is_kept_and_counted(
    renderer: Renderer, policy: str, got: list[str], status: str, sampled: int
) -> None:
    episode = await played(renderer, policy)
    assert episode.status == status, episode.error
    assert episode.judge_inputs["got"] == got
    assert episode.metrics["malformed_calls"] == sampled
    assert all(node.trainable for node in episode.forest.nodes if node.sampled)
    if policy == "end_episode":
        assert "cannot be read" in (episode.error or "")


async def test_an_agent_that_falls_over_the_end_keeps_its_episode(renderer: Renderer) -> None:
    class Naive(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            answer = await proxy.achat(ASK, [ADD])
            proxy.update_judge_input_dictionary(final_answer=answer["content"])

    episode = await played(renderer, "end_episode", Naive)
    assert (episode.status, episode.reward and episode.reward.raw_reward) == ("truncated", 1.0)
    episode = await played(renderer, "return_error", Naive)
    assert episode.status == "error"
    assert (episode.error or "").startswith(MalformedCall.__name__)


async def test_a_first_step_without_a_call_that_was_read_is_a_warning_once(
    renderer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ids = renderer.answer_ids([*ASK, {"role": "assistant", "content": BROKEN}], [])
    stage = build_stage(renderer, Stubborn, replies=lambda *_: ids)
    with caplog.at_level(logging.WARNING):
        await stage.play([task_of()])
        await stage.play([task_of()], step=2)
    (warning,) = [record for record in caplog.records if "no tool call was parsed" in record.getMessage()]
    assert '"name": "add"' in warning.getMessage()
    assert "show a solved example with a call" in warning.getMessage()
