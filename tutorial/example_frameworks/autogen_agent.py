"""AutoGen, which needs a description of a model that it does not know by name."""

import asyncio
import json
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    known = ModelInfo(
        vision=False, function_calling=True, json_output=True, structured_output=True, family=ModelFamily.UNKNOWN
    )
    model = OpenAIChatCompletionClient(model="policy", model_info=known)
    agent = AssistantAgent("calculator", model, tools=[add], reflect_on_tool_use=True, max_tool_iterations=5)
    result = await agent.run(task=json.load(sys.stdin)["main_query"])
    print(json.dumps({"final_answer": result.messages[-1].to_text()}))


asyncio.run(main())
