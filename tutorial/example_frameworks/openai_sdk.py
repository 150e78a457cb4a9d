"""OpenAI's SDK, Chat Completions, streamed."""

import json
import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}

client = OpenAI()
messages = [{"role": "user", "content": json.load(sys.stdin)["main_query"]}]
for _ in range(5):
    with client.chat.completions.stream(model="policy", messages=messages, tools=[TOOL]) as stream:
        answer = stream.get_final_completion().choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    if not answer.tool_calls:
        break
    for call in answer.tool_calls:
        given = json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])})
print(json.dumps({"final_answer": answer.content}))
