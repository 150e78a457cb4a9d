"""smolagents, whose agents end by calling `final_answer`."""

import json
import os
import sys

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


model = OpenAIModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = ToolCallingAgent(tools=[add], model=model, verbosity_level=LogLevel.OFF)
print(json.dumps({"final_answer": str(agent.run(json.load(sys.stdin)["main_query"], max_steps=5))}))
