"""Adaptation of AgentScope once it is imported, before a run or in the middle of an episode.

Its tools that act on this machine are confined during episodes. With 1.x, our models derive from its `ChatModelBase`,
and its agents print nothing. AgentScope is never imported from here, so a run without it has no cost.
"""

from __future__ import annotations

import threading
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
