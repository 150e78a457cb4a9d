"""OpenAI's Agents SDK, which asks by the Responses API."""

import json
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


agent = Agent(name="calculator", tools=[add], model="policy")
result = Runner.run_sync(agent, json.load(sys.stdin)["main_query"])
print(json.dumps({"final_answer": result.final_output}))
