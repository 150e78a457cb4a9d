"""AgentScope 2.x as a guest: its agents ask the gateway for the episode's model, by AgentScope's own client of OpenAI.

2.x has other messages, tools and events than 1.x, and streams its answers; what it sends is the same dialect as that
of any other agent. The version that was imported decides, and nothing is imported from here before.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def is_two() -> bool:
    """Return whether the AgentScope of this process is 2.x."""
    return str(getattr(sys.modules.get("agentscope"), "__version__", "")).startswith("2.")


def model_at(base_url: str, api_key: str, *, name: str, context_tokens: int) -> Any:
    """Return 2.x's model for an address. It asks once: a call that failed in the gateway has failed for good."""
    credential = import_module("agentscope.credential").OpenAICredential(base_url=base_url, api_key=api_key)
    client = import_module("agentscope.model").OpenAIChatModel
    return client(credential, name, max_retries=0, context_size=context_tokens)
