"""Loading of the configured workflow."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import FunctionType

from astune.config.arguments import require_accepted
from astune.config.imports import import_class_or_function
from astune.config.schema import AstuneConfig, ProgramConfig
from astune.schema import ConfigError
from astune.workflow.agent_server import agent_server_workflow
from astune.workflow.base import Workflow
from astune.workflow.function import function_workflow
from astune.workflow.program import program_workflow
from astune.workflow.workers import workers_workflow

_KEY = "rollout.workflow"


def load_workflow(
    config: AstuneConfig, base_dir: Path | None = None, *, workers_connect_here: bool = True
) -> type[Workflow]:
    """Return the class behind `rollout.workflow`: the user's, or a wrapper of the user's function, program or server.

    Args:
        base_dir: the folder of the YAML file, for relative paths.
        workers_connect_here: False where another process is the one that `astune worker` connects to.

    Raises:
        ConfigError: it is not set, does not import, or does not accept `rollout.params`.
    """
    named = config.rollout.workflow
    if not named:
        raise ConfigError(
            f"{_KEY} is not set, so there is no agent to train",
            hint="name your agent program, as module->Class or path/file.py->Class",
        )
    if isinstance(named, ProgramConfig):
        return _outside(named, config, base_dir, workers_connect_here)
    found = import_class_or_function(named, key=_KEY, base=Workflow, base_dir=base_dir)
    if not isinstance(found, FunctionType):
        require_accepted(found, config.rollout.params, key="rollout.params", positional=1)
        _require_constructor(found, config)
        return found
    if len(inspect.signature(found).parameters) < 2:
        raise ConfigError(
            f"{_KEY}: {found.__name__}{inspect.signature(found)} is not a workflow",
            hint=f"define `async def {found.__name__}(task, proxy)`",
        )
    require_accepted(found, config.rollout.params, key="rollout.params", positional=2)
    return function_workflow(found)


def _require_constructor(found: type[Workflow], config: AstuneConfig) -> None:
    signature = inspect.signature(found)
    try:
        signature.bind(config, **config.rollout.params)
    except TypeError as cause:
        raise ConfigError(
            f"{_KEY}: {found.__name__}{signature} does not accept the configuration: {cause}",
            hint="define `def __init__(self, config)` with `super().__init__(config)`, or no __init__",
        ) from None


def _outside(
    program: ProgramConfig, config: AstuneConfig, base_dir: Path | None, workers_connect_here: bool
) -> type[Workflow]:
    if config.rollout.params:
        raise ConfigError(
            "rollout.params are arguments of a class or a function, and rollout.workflow is a program",
            hint="give a program its arguments in rollout.workflow.command",
        )
    if program.command:
        return program_workflow(program, base_dir)
    if program.url:
        return agent_server_workflow(program)
    return workers_workflow(program, connect_here=workers_connect_here)
