"""mini-swe-agent: a shell in the episode's own folder, whose files stay from one command to the next."""

import json
import os
import sys

os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else LiteLLM asks GitHub for prices
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
}

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

model = LitellmModel(model_name="openai/policy", model_kwargs={"api_base": os.environ["OPENAI_BASE_URL"]})
agent = DefaultAgent(
    model,
    LocalEnvironment(timeout=20),
    system_template="You work in a shell.",
    instance_template="{{task}}\nWhen done, run: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat FILE",
    step_limit=10,
)
print(json.dumps({"final_answer": agent.run(json.load(sys.stdin)["main_query"]).get("submission", "").strip()}))
