"""Settings shared by all episodes of a pool, or of a split."""

from __future__ import annotations

from dataclasses import dataclass

from astune.config.schema import AstuneConfig
from astune.engine.base import InferenceEngine
from astune.renderers import Renderer
from astune.rollout.observer import RolloutObserver
from astune.schema import Split
from astune.task_judge import JudgeBase
from astune.workflow import Workflow


def num_repeat_of(config: AstuneConfig, split: Split) -> int:
    """Return the number of episodes of each task."""
    return config.rollout.num_repeat if split == "train" else config.trainer.validation.num_repeat


def temperature_of(config: AstuneConfig, split: Split) -> float:
    """Return the sampling temperature."""
    return config.rollout.temperature if split == "train" else config.validation_temperature


@dataclass(frozen=True, slots=True)
class RolloutSetting:
    """`judge` is None where the workflow returns its reward itself."""

    engine: InferenceEngine
    renderer: Renderer
    workflow_class: type[Workflow]
    judge: JudgeBase | None
    config: AstuneConfig
    observer: RolloutObserver
