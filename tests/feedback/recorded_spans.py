"""Runs in an environment of one AgentScope version: an agent with a tool, traced; writes Studio's table."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys

from agentscope import _config
from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg, TextBlock, ToolUseBlock
from agentscope.model import ChatModelBase, ChatResponse
from agentscope.tool import Toolkit, ToolResponse
from agentscope.tracing import trace_llm
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
_config.trace_enabled = True


class Scripted(ChatModelBase):
    """It calls its tool, and then answers."""

    def __init__(self) -> None:
        super().__init__("toy-model", False)
        self.calls = 0

    @trace_llm
    async def __call__(self, messages, tools=None, tool_choice=None, structured_model=None, **kwargs):
        self.calls += 1
        if self.calls == 1:
            block = ToolUseBlock(type="tool_use", id="c1", name="add", input={"a": 1, "b": 2})
            return ChatResponse(content=[block])
        return ChatResponse(content=[TextBlock(type="text", text='It\'s 3, "exactly".')])


async def add(a: int, b: int) -> ToolResponse:
    """Add two numbers."""
    return ToolResponse(content=[TextBlock(type="text", text=str(a + b))])


async def main() -> None:
    for question in ("What is 1 + 2? Write to ann@example.com.", 'And what\'s "1" + 2?'):
        toolkit = Toolkit()
        toolkit.register_tool_function(add)
        agent = ReActAgent(
            name="Friday", sys_prompt="You add.", model=Scripted(), formatter=OpenAIChatFormatter(), toolkit=toolkit
        )
        await agent(Msg("user", question, "user"))


def written(path: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE span_table (id TEXT, traceId TEXT, spanId TEXT, parentSpanId TEXT, name TEXT, "
            "startTimeUnixNano TEXT, endTimeUnixNano TEXT, attributes TEXT, events TEXT)"
        )
        for span in exporter.get_finished_spans():
            parent = f"{span.parent.span_id:016x}" if span.parent else None
            identity = f"{span.context.span_id:016x}"
            row = (identity, f"{span.context.trace_id:032x}", identity, parent, span.name, str(span.start_time))
            times = (str(span.end_time), json.dumps(dict(span.attributes or {})))
            database.execute("INSERT INTO span_table VALUES (?,?,?,?,?,?,?,?,'[]')", (*row, *times))


asyncio.run(main())
written(sys.argv[1])
