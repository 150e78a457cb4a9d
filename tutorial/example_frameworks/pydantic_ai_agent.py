"""Pydantic AI."""

import json
import sys

from pydantic_ai import Agent

agent = Agent("openai-chat:policy")


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


result = agent.run_sync(json.load(sys.stdin)["main_query"])
print(json.dumps({"final_answer": result.output}))
