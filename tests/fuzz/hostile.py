"""Text that a model may write and no author expects: broken tool calls, control tokens, numbers that are none."""

from __future__ import annotations

import json
import random
from typing import Any

NAMES = (
    "execute_python_code",
    "execute_shell_command",
    "generate_response",
    "double",
    "finish",
    "nothing_like_it",
    "__class__",
    "",
    " ",
    "a" * 300,
    "ünï",
    "../x",
    "None",
)
KEYS = (
    "code",
    "command",
    "timeout",
    "result",
    "response",
    "number",
    "text",
    "x",
    "self",
    "task",
    "",
    "a b",
    "__init__",
)
SCRAPS = (
    "<tool_call>",
    "</tool_call>",
    "<|im_end|>",
    "<|im_start|>",
    "<|im_start|>assistant\n",
    "<think>",
    "</think>",
    "<calc>",
    "</calc>",
    "<calc>2**99999999</calc>",
    "<calc>1/0</calc>",
    "<calc>(((((1</calc>",
    "<calc>9" + "9" * 500 + "</calc>",
    "\\boxed{",
    "}",
    "\\boxed{}",
    "\\boxed{64}",
    "\\boxed{1e999}",
    "\\boxed{\\frac{1}{0}}",
    "\\boxed{NaN}",
    "\\boxed{" + "9" * 400 + "}",
    "left",
    "up",
    "right down",
    "```python\nprint(1)\n```",
    "\x00",
    "\x1b]52;c;eA==\x07",
    "\u202e",
    "\ufeff",
    "🙂",
    "é" * 30,
    "{{ 7 * 7 }}",
    "{% for %}",
    "%s",
    "NaN",
    "-inf",
    "null",
    "[]",
    "{}",
    '{"name": ',
    "\\ud800",
    "&#0;",
    "'; drop table t; --",
)


def hostile_text(rng: random.Random) -> str:
    """One answer; a surrogate is in it as an escape of JSON only, since tokens are bytes of UTF-8."""
    return _text(rng).encode("utf-8", "replace").decode()


def _text(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return _call(rng)
    if kind < 0.55:
        return _call(rng) + _call(rng)
    if kind < 0.65:
        text = _call(rng)
        return text[: rng.randrange(len(text) + 1)]
    return rng.choice(("", " ", "\n")).join(rng.choice(SCRAPS) for _ in range(rng.randrange(6)))


def _call(rng: random.Random) -> str:
    call: dict[str, Any] = {"name": rng.choice(NAMES), "arguments": _arguments(rng)}
    if rng.random() < 0.2:
        call[rng.choice(("name", "arguments", "id", "type"))] = _value(rng, 2)
    if rng.random() < 0.1:
        del call[rng.choice(list(call))]
    text = json.dumps(call, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.1:
        position = rng.randrange(len(text))
        text = text[:position] + rng.choice(SCRAPS) + text[position + 1 :]
    if rng.random() < 0.05:
        text = '{"name": "double", "arguments": ' + "[" * 3000 + "]" * 3000 + "}"
    return f"<tool_call>\n{text}\n</tool_call>"


def _arguments(rng: random.Random) -> Any:
    if rng.random() < 0.15:
        return _value(rng, 3)
    return {rng.choice(KEYS): _value(rng, 3) for _ in range(rng.randrange(4))}


def _value(rng: random.Random, depth: int) -> Any:
    simple = (
        None,
        True,
        0,
        -1,
        -5,
        -20,
        7,
        10**300,
        10**25,
        0.5,
        float("nan"),
        float("inf"),
        "",
        "7",
        "NaN",
        "\ud800",
        "\x00",
        "print(6 * 7)",
        "while True: pass",
        "import os; os._exit(3)",
        "raise SystemExit",
        "x" * 500,
        "\\boxed{64}",
        rng.choice(SCRAPS),
    )
    if depth == 0 or rng.random() < 0.7:
        return rng.choice(simple)
    if rng.random() < 0.5:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): _value(rng, depth - 1) for _ in range(rng.randrange(4))}
