"""LangGraph, by LangChain's `create_agent`, streamed with `astream`: tokens as messages, states as values."""

import asyncio
import json
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    agent = create_agent(ChatOpenAI(model="policy"), tools=[add])
    question = {"messages": [{"role": "user", "content": json.load(sys.stdin)["main_query"]}]}
    async for kind, part in agent.astream(question, stream_mode=["messages", "values"]):
        if kind == "values":
            last = part["messages"][-1]
    print(json.dumps({"final_answer": last.text}))


asyncio.run(main())
