"""ASTuner trains the language model behind an agent.

Everything that a user's files import is exported here, and so are the command line's functions. Submodules are imported
lazily: `import astune` loads neither torch nor an agent framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astune.algorithm import Algorithm, TokenLoss, Tokens
    from astune.app import Evaluation, Run, debug, evaluate, resume, train, tune
    from astune.backbone.base import Backbone
    from astune.config import AstuneConfig, TaskReaderConfig, load_config
    from astune.engine import EngineBase
    from astune.env_service import Environment, EnvState, EnvStep
    from astune.sandbox import Sandbox, SandboxConfig
    from astune.schema import (
        AstuneError,
        Completion,
        ConfigError,
        ContextOverflow,
        EngineError,
        EnvError,
        Episode,
        JudgeError,
        MalformedCall,
        Message,
        Reward,
        SamplingParams,
        SandboxError,
        Task,
        TaskReaderError,
        WorkflowError,
    )
    from astune.scoring import after_marker, calculate, format_number, last_boxed, same_answer
    from astune.task_judge import (
        DenseEnvServiceJudge,
        EnvServiceJudge,
        GroupJudgeBase,
        JudgeBase,
        MathAnswerAndLlmAsJudge,
        MathAnswerAsJudge,
    )
    from astune.task_reader import TaskReaderBase, TaskReaderHuggingFace
    from astune.trackers import TrackedRun, Tracker
    from astune.workflow import (
        AgentModel,
        AgentScopeLearnProtocol,
        AstuneProxy,
        Workflow,
        WorkflowOutput,
        execute_python_code,
        execute_shell_command,
        run_python_code,
    )

    EnvironmentBase = Environment

__version__ = "0.1.0"

_HOMES = {
    "astune.algorithm": (
        "Algorithm",
        "TokenLoss",
        "Tokens",
    ),
    "astune.app": (
        "Evaluation",
        "Run",
        "evaluate",
        "resume",
        "train",
        "tune",
    ),
    "astune.backbone.base": ("Backbone",),
    "astune.config": (
        "AstuneConfig",
        "TaskReaderConfig",
        "load_config",
    ),
    "astune.engine": ("EngineBase",),
    "astune.env_service": (
        "EnvState",
        "EnvStep",
        "Environment",
    ),
    "astune.sandbox": (
        "Sandbox",
        "SandboxConfig",
    ),
    "astune.schema": (
        "AstuneError",
        "Completion",
        "ConfigError",
        "ContextOverflow",
        "EngineError",
        "EnvError",
        "Episode",
        "JudgeError",
        "MalformedCall",
        "Message",
        "Reward",
        "SamplingParams",
        "SandboxError",
        "Task",
        "TaskReaderError",
        "WorkflowError",
    ),
    "astune.scoring": (
        "after_marker",
        "calculate",
        "format_number",
        "last_boxed",
        "same_answer",
    ),
    "astune.task_judge": (
        "DenseEnvServiceJudge",
        "EnvServiceJudge",
        "GroupJudgeBase",
        "JudgeBase",
        "MathAnswerAndLlmAsJudge",
        "MathAnswerAsJudge",
    ),
    "astune.task_reader": (
        "TaskReaderBase",
        "TaskReaderHuggingFace",
    ),
    "astune.trackers": (
        "TrackedRun",
        "Tracker",
    ),
    "astune.workflow": (
        "AgentModel",
        "AgentScopeLearnProtocol",
        "AstuneProxy",
        "Workflow",
        "WorkflowOutput",
        "execute_python_code",
        "execute_shell_command",
        "run_python_code",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_ALIASES = {"EnvironmentBase": "Environment"}
"""Alternative names that are accepted as well."""

__all__ = [
    "AgentModel",
    "AgentScopeLearnProtocol",
    "Algorithm",
    "AstuneConfig",
    "AstuneError",
    "AstuneProxy",
    "Backbone",
    "Completion",
    "ConfigError",
    "ContextOverflow",
    "DenseEnvServiceJudge",
    "EngineBase",
    "EngineError",
    "EnvError",
    "EnvServiceJudge",
    "EnvState",
    "EnvStep",
    "Environment",
    "Episode",
    "Evaluation",
    "GroupJudgeBase",
    "JudgeBase",
    "JudgeError",
    "MalformedCall",
    "MathAnswerAndLlmAsJudge",
    "MathAnswerAsJudge",
    "Message",
    "Reward",
    "Run",
    "SamplingParams",
    "Sandbox",
    "SandboxConfig",
    "SandboxError",
    "Task",
    "TaskReaderBase",
    "TaskReaderConfig",
    "TaskReaderError",
    "TaskReaderHuggingFace",
    "TokenLoss",
    "Tokens",
    "TrackedRun",
    "Tracker",
    "Workflow",
    "WorkflowError",
    "WorkflowOutput",
    "after_marker",
    "calculate",
    "debug",
    "evaluate",
    "execute_python_code",
    "execute_shell_command",
    "format_number",
    "last_boxed",
    "load_config",
    "resume",
    "run_python_code",
    "same_answer",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    if name == "debug":  # a module, with `bp`, that can be called
        return importlib.import_module("astune.debug")
    if name not in _HOME:
        raise AttributeError(f"module 'astune' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, "debug"])
