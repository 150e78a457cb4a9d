"""Interface of a judge. Calling one, and handling its result, is `astune.rollout.verdict`'s business."""

from __future__ import annotations

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from inspect import Parameter
from pathlib import Path
from typing import Any, TypeAlias

from astune.config.imports import import_class
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError, Reward, boundary_now

Verdict: TypeAlias = tuple[float, bool] | Reward
"""(raw_reward, is_success), or a Reward."""


class JudgeBase(ABC):
    """One instance judges every episode of a run, several at once.

        class LengthJudge(JudgeBase):
            def compute_reward(self, judge_input_dictionary):
                short = len(judge_input_dictionary["final_answer"]) < 100
                return float(short), short

    `self.config` is the whole resolved configuration.
    """

    def __init__(self, config: AstuneConfig) -> None:
        self.config = config

    @abstractmethod
    def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Verdict | Awaitable[Verdict]:
        """Judge one episode; an ordinary method runs in a thread.

        `judge_input_dictionary` holds `env` (the environment's handle, or None; an `async def` awaits its methods, an
        ordinary one does not), `task_core_arg` (with `.task.metadata`), `grouped_steps` (every timeline as a list of
        messages), and whatever the workflow registered, `final_answer` among it. A judge that cannot tell raises; it
        does not return 0.
        """


def load_judge(config: AstuneConfig, *, base_dir: Path | None = None) -> JudgeBase | None:
    """The judge that `task_judge.judge_protocol` names, made with `task_judge.params`; None where it names none.

    Raises:
        ConfigError: it does not import, or cannot be made so.
    """
    reference = config.task_judge.judge_protocol
    if not reference:
        return None
    judge_class: Any = import_class(reference, key="task_judge.judge_protocol", base=JudgeBase, base_dir=base_dir)
    params = config.task_judge.params
    _require_taken(judge_class, params)
    hint = "its __init__, if it has one, takes the configuration, and task_judge.params as keyword arguments"
    with boundary_now(ConfigError, f"task_judge.judge_protocol: making {judge_class.__name__}", hint=hint):
        return judge_class(config, **params)


def _require_taken(judge_class: type[JudgeBase], params: dict[str, Any]) -> None:
    """Refuse arguments that the class does not take."""
    taken = list(inspect.signature(judge_class).parameters.values())[1:]
    names = [parameter.name for parameter in taken if parameter.kind is not Parameter.VAR_KEYWORD]
    unknown = [name for name in params if name not in names]
    if unknown and len(names) == len(taken):
        close = difflib.get_close_matches(unknown[0], names, n=1)
        raise ConfigError(
            f"task_judge.params.{unknown[0]}: {judge_class.__name__} takes no such argument",
            hint=f"did you mean {close[0]}?" if close else f"it takes {', '.join(names) or 'none'}",
        )
