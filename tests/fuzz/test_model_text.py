"""Whatever a model writes, its episode ends with a reward or as truncated: never in an error that throws it away.

Each agent plays with answers of `hostile.py`; where an answer has to follow a grammar, a small model of random weights
answers, and the grammar holds. `make fuzz N=1000 SEED=7` plays more; a failure names its seed, which plays it again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hostile import hostile_text

from astune import AgentScopeLearnProtocol, AstuneProxy, Task, Workflow, execute_python_code
from astune.config import AstuneConfig
from astune.engine.local.in_process import InProcessEngine
from astune.engine.scripted import ScriptedEngine
from astune.renderers import load_renderer
from astune.rollout import RolloutPool
from astune.schema import SamplingParams
from astune.task_judge import EnvServiceJudge, MathAnswerAsJudge

pytest.importorskip("agentscope")
from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.tool import Toolkit, ToolResponse
from pydantic import BaseModel

pytestmark = pytest.mark.slow
EPISODES = int(os.environ.get("FUZZ_EPISODES", "16"))
"""Of each agent."""
SEED = int(os.environ.get("FUZZ_SEED", "0"))


class Result(BaseModel):
    result: str
    number: int


async def double(number: int, text: str = "") -> ToolResponse:
    """Double a number.

    Args:
        number (`int`): The number.
        text (`str`): Printed behind it.
    """
    return ToolResponse(content=[{"type": "text", "text": f"{number * 2}{text}"}])


class WithTools(AgentScopeLearnProtocol):
    structured: bool = False

    async def agentscope_execute(self, init_messages: Any, astune_proxy: AstuneProxy, config: Any) -> AstuneProxy:
        toolkit = Toolkit()
        toolkit.register_tool_function(execute_python_code)
        toolkit.register_tool_function(double)
        agent = ReActAgent(
            name="solver",
            sys_prompt="Use tools.",
            model=astune_proxy,
            formatter=OpenAIChatFormatter(),
            toolkit=toolkit,
            max_iters=4,
        )
        agent.set_console_output_enabled(False)
        message = Msg("user", init_messages[-1]["content"], "user")
        result = await agent.reply(message, **({"structured_model": Result} if self.structured else {}))
        answer = (result.metadata or {}).get("result", "") if self.structured else result.get_text_content()
        astune_proxy.update_judge_input_dictionary(final_answer=answer)
        return astune_proxy


class WithStructure(WithTools):
    structured = True


class WithOpenAI(Workflow):
    """OpenAI's own client through the gateway: tools, streaming, and a form that answers have to keep to."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        tool = {"name": "double", "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}}}
        messages: list[Any] = [{"role": "user", "content": task.main_query}]
        async with proxy.as_openai_client() as client:
            for _ in range(3):
                said = await client.chat.completions.create(
                    model="any", messages=messages, tools=[{"type": "function", "function": tool}]
                )
                message = said.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls or ():
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": call.function.arguments})
                if not message.tool_calls:
                    messages.append({"role": "user", "content": f"You said: {message.content}"})
            stream = await client.chat.completions.create(model="any", messages=messages, stream=True)
            text = "".join([part.choices[0].delta.content or "" async for part in stream if part.choices])
            form = {"type": "json_schema", "json_schema": {"name": "n", "schema": Result.model_json_schema()}}
            held = await client.chat.completions.create(model="any", messages=messages, response_format=form)
            if held.choices[0].finish_reason == "stop":
                Result.model_validate_json(held.choices[0].message.content or "")
            proxy.update_judge_input_dictionary(final_answer=text)


class StepsInEnvironment(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        messages = list(proxy.init_messages)
        for _ in range(4):
            reply = await proxy.achat(messages)
            observation, _, terminate, _ = await proxy.agym_step(reply)
            if terminate:
                return
            messages += [reply, {"role": "user", "content": observation}]


CALCULATOR = Task(task_id="sum", main_query="What is 49 + 15?", env_type="calculator", metadata={"answer": "64"})
LAKE = Task(task_id="lake", main_query="Go.", env_type="frozenlake", metadata={"map": ["SFF", "FHF", "FFG"]})
PLAIN = Task(task_id="plain", main_query="What is 49 + 15?", metadata={"answer": "64"})
AGENTS: dict[str, tuple[type[Workflow], Any, Task]] = {
    "AgentScope with tools": (WithTools, MathAnswerAsJudge, PLAIN),
    "AgentScope with a structured result": (WithStructure, MathAnswerAsJudge, PLAIN),
    "OpenAI's client": (WithOpenAI, MathAnswerAsJudge, PLAIN),
    "steps in the calculator": (StepsInEnvironment, EnvServiceJudge, CALCULATOR),
    "steps on the lake": (StepsInEnvironment, EnvServiceJudge, LAKE),
}


class HostileEngine(ScriptedEngine):
    """Hostile text where anything may be written; a model of random weights where a grammar says what may."""

    def __init__(self, encode: Any, model: InProcessEngine, vocabulary: int) -> None:
        super().__init__(self._hostile, max_model_len=2048)
        self._encode, self._model, self._vocabulary = encode, model, vocabulary
        self._rngs: dict[str, random.Random] = {}
        self.said: dict[str, list[str]] = {}

    async def stream(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str, **how: Any) -> Any:
        if params.grammar is None:
            return await super().stream(prompt_ids, params, session=session, **how)
        self._model.open_session(session)
        try:
            return await self._model.generate(prompt_ids, params, session=session)
        finally:
            self._model.close_session(session)

    def _hostile(self, prompt: list[int], params: SamplingParams, session: str) -> list[int]:
        rng = self._rngs.setdefault(session, random.Random(f"{SEED} {session}"))
        if rng.random() < 0.15:
            return [rng.randrange(self._vocabulary) for _ in range(rng.randrange(1, 60))]
        text = hostile_text(rng)
        self.said.setdefault(session, []).append(text)
        return self._encode(text)


@pytest.mark.parametrize("name", AGENTS)
def test_no_text_of_a_model_throws_its_episode_away(
    name: str, smol_folder: Path, tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(_played(name, tiny_folder))


async def _played(name: str, tiny_folder: Path) -> None:
    workflow, judge, task = AGENTS[name]
    rollout = {"max_model_len": 2048, "max_response_length_in_one_turn": 400, "max_attempts": 1}
    config = AstuneConfig.model_validate(
        {
            "rollout": rollout,
            "task_judge": {"reference_field": "answer"},
            "sandbox": {"timeout_s": 1.0},
            "engine": {"kv_cache_gb": 0.05, "max_batch_size": 4},
        }
    )
    renderer = load_renderer(tiny_folder)
    model = InProcessEngine.load(tiny_folder, model=config.model, engine=config.engine, max_model_len=2048)
    try:
        encode = renderer._template.encode  # type: ignore[attr-defined]
        engine = HostileEngine(encode, model, len(renderer.vocabulary().pieces))
        pool = RolloutPool(engine, renderer, workflow, judge(config), config)
        groups = await pool.run_groups([task], step=1, split="train", num_repeat=EPISODES, temperature=1.0)
    finally:
        model.stop()
    failed = [episode for group in groups for episode in group.failed_attempts]
    for episode in failed[:3]:
        logging.getLogger(__name__).error("%s: %s", episode.error, json.dumps(engine.said.get(episode.episode_id)))
    assert not failed, Counter((episode.error or "")[:200] for episode in failed).most_common(10)
