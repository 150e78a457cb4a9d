"""DSPy's ReAct with the model's address; its cache is off, since each question is to be sampled again.

It writes all steps again into one message for each call, so that every call is a conversation of its own.
"""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else LiteLLM asks GitHub for prices

import dspy


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


model = dspy.LM(
    "openai/policy",
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    cache=False,
    num_retries=0,
)
dspy.configure(lm=model)
agent = dspy.ReAct("question -> answer", tools=[add], max_iters=5)
print(json.dumps({"final_answer": agent(question=json.load(sys.stdin)["main_query"]).answer}))
