"""ASTuner trains the language model behind an agent.

What a user's files need is importable from here. Nothing is loaded before it is used: neither torch nor an agent
framework comes with `import astune`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astune.env_service import Environment, EnvState, EnvStep
    from astune.schema import Episode, Reward, Task
    from astune.task_judge import JudgeBase
    from astune.task_reader import TaskReaderBase
    from astune.workflow import AgentScopeLearnProtocol, AstuneProxy, Workflow, WorkflowOutput

__version__ = "0.1.0"

_HOME = {
    "AgentScopeLearnProtocol": "astune.workflow",
    "AstuneProxy": "astune.workflow",
    "EnvState": "astune.env_service",
    "EnvStep": "astune.env_service",
    "Environment": "astune.env_service",
    "Episode": "astune.schema",
    "JudgeBase": "astune.task_judge",
    "Reward": "astune.schema",
    "Task": "astune.schema",
    "TaskReaderBase": "astune.task_reader",
    "Workflow": "astune.workflow",
    "WorkflowOutput": "astune.workflow",
}

__all__ = [
    "AgentScopeLearnProtocol",
    "AstuneProxy",
    "EnvState",
    "EnvStep",
    "Environment",
    "Episode",
    "JudgeBase",
    "Reward",
    "Task",
    "TaskReaderBase",
    "Workflow",
    "WorkflowOutput",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'astune' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
