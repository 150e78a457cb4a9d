"""Anthropic's SDK, streamed."""

import json
import sys

from anthropic import Anthropic

TOOL = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}

client = Anthropic()
messages = [{"role": "user", "content": json.load(sys.stdin)["main_query"]}]
for _ in range(5):
    with client.messages.stream(model="policy", max_tokens=512, messages=messages, tools=[TOOL]) as stream:
        answer = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    calls = [block for block in answer.content if block.type == "tool_use"]
    if not calls:
        break
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": str(call.input["a"] + call.input["b"])}
        for call in calls
    ]
    messages.append({"role": "user", "content": results})
print(json.dumps({"final_answer": "".join(block.text for block in answer.content if block.type == "text")}))
