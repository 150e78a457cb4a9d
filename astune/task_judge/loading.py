"""The judge that the configuration names."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import FunctionType

from astune.config.arguments import require_accepted
from astune.config.imports import import_class_or_function
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError, boundary_now
from astune.task_judge.function_judge import FunctionJudge
from astune.task_judge.judge_base import JudgeBase

_KEY = "task_judge.judge_protocol"


def load_judge(config: AstuneConfig, *, base_dir: Path | None = None) -> JudgeBase | None:
    """The judge that `task_judge.judge_protocol` names, made with `task_judge.params`; None where it names none.

    Raises:
        ConfigError: it does not import, or cannot be made so.
    """
    reference, params = config.task_judge.judge_protocol, config.task_judge.params
    if not reference:
        return None
    found = import_class_or_function(reference, key=_KEY, base=JudgeBase, base_dir=base_dir)
    if isinstance(found, FunctionType):
        if not {"task", "response"} <= inspect.signature(found).parameters.keys():
            raise ConfigError(
                f"{_KEY}: {found.__name__}{inspect.signature(found)} is no judge",
                hint=f"define `async def {found.__name__}(task, response)`, or a class derived from JudgeBase",
            )
        require_accepted(found, params, key="task_judge.params", positional=2)
        return FunctionJudge(config, found, params)
    require_accepted(found, params, key="task_judge.params", positional=1)
    hint = "its __init__, if it has one, takes the configuration, and task_judge.params as keyword arguments"
    with boundary_now(ConfigError, f"{_KEY}: making {found.__name__}", hint=hint):
        return found(config, **params)
