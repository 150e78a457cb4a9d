"""A calculator's agent as its users meet it: AgentScope with its own tracing, over a model that `astune serve` serves.

    python traced_agent.py TRACING_URL QUESTIONS.jsonl

A line of the file holds `session`, `question`, and the messages that stand before it. For each one a line of JSON is
printed: what the user reads, which is the value of the calculation that the model wrote, and the trace that it is in.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import agentscope
from agentscope import _config
from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.model import OpenAIChatModel
from opentelemetry import trace
from solver import value_of

AT_ONCE = 8


async def answered(asked: dict[str, Any], turn: asyncio.Semaphore) -> dict[str, Any]:
    system, *examples = asked["before"]
    async with turn:
        _config.run_id = asked["session"]  # of this task alone: it is a context variable
        agent = ReActAgent(
            name="solver",
            sys_prompt=system["content"],
            model=OpenAIChatModel("served", os.environ["OPENAI_API_KEY"], stream=False),
            formatter=OpenAIChatFormatter(),
        )
        agent.set_console_output_enabled(False)
        await agent.observe([Msg(each["role"], each["content"], each["role"]) for each in examples])
        with trace.get_tracer("users").start_as_current_span("request") as span:
            reply = await agent(Msg("user", asked["question"], "user"))
    trace_id = f"{span.get_span_context().trace_id:032x}"
    return {"read": value_of(reply.get_text_content() or ""), "trace_id": trace_id}


async def main(tracing_url: str, questions: list[dict[str, Any]]) -> None:
    agentscope.init(project="calculator", tracing_url=tracing_url)
    turn = asyncio.Semaphore(AT_ONCE)
    for each in await asyncio.gather(*(asyncio.create_task(answered(asked, turn)) for asked in questions)):
        sys.stdout.write(json.dumps(each) + "\n")
    provider: Any = trace.get_tracer_provider()
    provider.force_flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]))
