"""Google's Agent Development Kit, by its own client of OpenAI's API."""

import asyncio
import json
import sys

from google.adk.agents import Agent
from google.adk.integrations.openai import OpenAILlm
from google.adk.runners import InMemoryRunner


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    agent = Agent(name="calculator", model=OpenAILlm(model="policy"), tools=[add])
    runner = InMemoryRunner(agent)
    events = await runner.run_debug(json.load(sys.stdin)["main_query"], quiet=True)
    texts = [part.text for part in events[-1].content.parts if part.text]
    print(json.dumps({"final_answer": "".join(texts)}))


asyncio.run(main())
