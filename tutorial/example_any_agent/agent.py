r"""The calculator's agent as a program: it reads a task, asks a model over HTTP, and prints its answer.

Nothing of ASTuner is imported. The model is at $OPENAI_BASE_URL, as for any agent of OpenAI's API; only the standard
library is used here, since a process is started for every episode and OpenAI's SDK takes a second to import.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Callable

MESSAGES = [
    {"role": "system", "content": r"Write <calc>...</calc> to calculate. When you have the result, write \boxed{...}."},
    {"role": "user", "content": "Mia has 58 pears and gets 23 more. How many pears does Mia have?"},
    {"role": "assistant", "content": "<calc>58+23</calc>"},
    {"role": "user", "content": "<result>81</result>"},
    {"role": "assistant", "content": r"\boxed{81}"},
    {"role": "user", "content": "Noah had 82 pears and ate 45. How many are left?"},
    {"role": "assistant", "content": "<calc>82-45</calc>"},
    {"role": "user", "content": "<result>37</result>"},
    {"role": "assistant", "content": r"\boxed{37}"},
]
CALCULATION = re.compile(r"<calc>\s*(\d{1,9})\s*([-+])\s*(\d{1,9})\s*</calc>")


def ask(messages: list[dict[str, str]]) -> str:
    """The model's answer."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        data=json.dumps({"model": os.environ["ASTUNE_MODEL"], "messages": messages}).encode(),
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def solve(question: str, ask: Callable[[list[dict[str, str]]], str] = ask) -> str:
    """The last answer, after at most three."""
    messages = [*MESSAGES, {"role": "user", "content": question}]
    text = ""
    for _ in range(3):
        text = ask(messages)
        found = CALCULATION.search(text)
        if found is None or r"\boxed" in text:
            break
        one, sign, other = int(found[1]), found[2], int(found[3])
        result = one + other if sign == "+" else one - other
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"<result>{result}</result>"}]
    return text


if __name__ == "__main__":
    print(json.dumps({"final_answer": solve(json.load(sys.stdin)["main_query"])}))  # noqa: T201 - this is how it answers
