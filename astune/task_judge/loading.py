"""The judge that the configuration names."""

from __future__ import annotations

import difflib
import inspect
from pathlib import Path
from types import FunctionType
from typing import Any

from astune.config.arguments import require_accepted
from astune.config.imports import import_class_or_function
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError, boundary_now
from astune.task_judge.calibration import Calibration
from astune.task_judge.function_judge import function_judge
from astune.task_judge.judge_base import GroupJudgeBase, JudgeBase
from astune.task_judge.weighted import Part, WeightedGroupJudges, WeightedJudges

_KEY = "task_judge.judge_protocol"
_PARAMS = "task_judge.params"


_NAMES = {
    "math": "astune.task_judge.math_answer_as_judge->MathAnswerAsJudge",
    "math_and_llm": "astune.task_judge.math_answer_as_judge->MathAnswerAndLlmAsJudge",
    "env_service": "astune.task_judge.env_service_as_judge->EnvServiceJudge",
    "llm": "astune.task_judge.llm_judge->LlmJudge",
    "group": "astune.task_judge.group_judge->GroupJudge",
    "checker": "astune.task_judge.checker_judge->CheckerJudge",
    "rubrics": "astune.task_judge.rubrics_judge->RubricsJudge",
    "length_penalty": "astune.task_judge.shaping->LengthPenalty",
    "format_bonus": "astune.task_judge.shaping->FormatBonus",
}
"""Built-in judges by their short names."""


def load_judge(config: AstuneConfig, *, base_dir: Path | None = None) -> JudgeBase | None:
    """The judge that `task_judge.judge_protocol` names, made with its params; None where it names none. Raises
    ConfigError if it does not import, or cannot be made so."""
    named, params = config.task_judge.judge_protocol, config.task_judge.params
    if isinstance(named, str):
        return _load(named, params, config, base_dir, _PARAMS) if named else None
    if not named:
        return None
    if params:
        raise ConfigError(f"{_PARAMS} belongs to one judge, and {_KEY} lists several", hint="give each its own params")
    parts = [
        Part(
            _load(each.judge, each.params, config, base_dir, f"{_KEY}.{number}.params"),
            each.weight,
            Calibration.load(_found(each.calibration, base_dir)) if each.calibration else None,
        )
        for number, each in enumerate(named)
    ]
    grouped = any(isinstance(part.judge, GroupJudgeBase) for part in parts)
    return WeightedGroupJudges(config, parts) if grouped else WeightedJudges(config, parts)


def _found(file: str, base_dir: Path | None) -> Path:
    """The file in the working directory, or else beside the experiment's YAML file."""
    path = Path(file).expanduser()
    return path if path.exists() or base_dir is None else base_dir / path


def _load(
    named: str, params: dict[str, Any], config: AstuneConfig, base_dir: Path | None, params_key: str
) -> JudgeBase:
    reference = _NAMES.get(named, named)
    if reference.isidentifier() and (close := difflib.get_close_matches(reference, _NAMES, n=1)):
        raise ConfigError(f"{_KEY}: there is no judge {named!r}", hint=f"did you mean {close[0]}?")
    found = import_class_or_function(reference, key=_KEY, base=JudgeBase, base_dir=base_dir)
    if isinstance(found, FunctionType):
        if not {"task", "response"} <= inspect.signature(found).parameters.keys():
            raise ConfigError(
                f"{_KEY}: {found.__name__}{inspect.signature(found)} is no judge",
                hint=f"define `async def {found.__name__}(task, response)`, or a class derived from JudgeBase",
            )
        require_accepted(found, params, key=params_key, positional=2)
        return function_judge(found)(config, **params)
    require_accepted(found, params, key=params_key, positional=1)
    hint = f"its __init__, if it has one, takes the configuration, and {params_key} as keyword arguments"
    with boundary_now(ConfigError, f"{_KEY}: making {found.__name__}", hint=hint):
        return found(config, **params)
