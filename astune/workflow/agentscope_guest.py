"""Adaptation of AgentScope once it is imported, before a run or in the middle of an episode.

Its tools that act on this machine are confined during episodes. With 1.x, our models derive from its `ChatModelBase`,
and its agents print nothing. Agents of 2.x, which has other messages, tools and events, ask the gateway for the
episode's model, by AgentScope's own client of OpenAI. AgentScope is never imported from here: without it a run has no
cost.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from astune.context_tracker.agentscope import is_quiet
from astune.schema.after_import import after_import
from astune.workflow.held_tools import HELD_TOOLS, hold_back
from astune.workflow.held_tools_two import hold_back_tools_of_two

_first = threading.Lock()
"""Held from the first adaptation on."""

if TYPE_CHECKING:
    from agentscope.model import ChatModelBase as ChatModel
else:

    class _Origin:
        """Python changes the bases only of a class that does not derive from `object` itself."""

    class ChatModel(_Origin):
        """Base class of our models: AgentScope's `ChatModelBase` once that is imported, and nothing before."""


def arrange_agentscope() -> None:
    """Adapt AgentScope now, or as soon as it is imported; only the first call in a process has an effect."""
    if _first.acquire(blocking=False):
        after_import("agentscope", _arrange)


def _arrange(agentscope: ModuleType) -> None:
    version = str(getattr(agentscope, "__version__", ""))
    if version.startswith("2."):
        hold_back_tools_of_two()
    if not version.startswith("1."):
        return
    ChatModel.__bases__ = (agentscope.model.ChatModelBase,)
    agentscope.agent.AgentBase.register_class_hook("pre_print", "astune_silence", _silence)
    for name in HELD_TOOLS:
        hold_back(name, getattr(agentscope.tool, name))


def _silence(agent: Any, _message: dict[str, Any]) -> None:
    """Silence an agent, also those made before the run began, and those of 1.0.7 and 1.0.8, which ignore the
    variable."""
    if is_quiet():
        agent.set_console_output_enabled(False)


def is_two() -> bool:
    """Return whether the AgentScope of this process is 2.x."""
    return str(getattr(sys.modules.get("agentscope"), "__version__", "")).startswith("2.")


def model_at(base_url: str, api_key: str, *, name: str, context_tokens: int) -> Any:
    """Return 2.x's model for an address. It asks once: a call that failed in the gateway has failed for good."""
    credential = import_module("agentscope.credential").OpenAICredential(base_url=base_url, api_key=api_key)
    client = import_module("agentscope.model").OpenAIChatModel
    return client(credential, name, max_retries=0, context_size=context_tokens)
