"""AgentScope 2.x, whose agent streams its answers."""

import asyncio
import json
import os
import sys

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.tool import FunctionTool, Toolkit


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


async def main() -> None:
    where = OpenAICredential(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    tools = Toolkit([FunctionTool(add, is_read_only=True)])
    agent = Agent("calculator", "You calculate.", OpenAIChatModel(where, "policy"), tools)
    answer = await agent.reply(UserMsg("user", json.load(sys.stdin)["main_query"]))
    print(json.dumps({"final_answer": answer.get_text_content()}))


asyncio.run(main())
