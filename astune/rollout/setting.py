"""Settings shared by all episodes of a pool."""

from __future__ import annotations

from dataclasses import dataclass

from astune.config.schema import AstuneConfig
from astune.engine.base import InferenceEngine
from astune.renderers import Renderer
from astune.rollout.observer import RolloutObserver
from astune.rollout.verdict import Judge
from astune.workflow import Workflow


@dataclass(frozen=True, slots=True)
class RolloutSetting:
    """`judge` is None where the workflow returns its reward itself."""

    engine: InferenceEngine
    renderer: Renderer
    workflow_class: type[Workflow]
    judge: Judge | None
    config: AstuneConfig
    observer: RolloutObserver
