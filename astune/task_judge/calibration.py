"""Calibration of a judge's reward to people's labels, for each group of tasks: the same 0.8 may be strict for one
subject and lenient for another.

A curve maps rewards to labels between 0 and 1: increasing, through the means of an isotonic regression, straight lines
between them. `astune check judge --calibrate` writes the file, `calibration` of a judge in the list names it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from astune.config.output_file import write_whole
from astune.schema import ConfigError, JudgeError, Task

EVERY = ""
"""The curve of all labels, for tasks of groups that have none of their own."""
FEWEST = 10
"""Labels of which a group gets a curve of its own."""
_FOLDS = 5


class Curve(BaseModel):
    """Rewards and what they are worth, both increasing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    labels: int
    points: list[tuple[float, float]] = Field(min_length=1)

    @field_validator("points")
    @classmethod
    def _in_order(cls, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        for column in map(list, zip(*points, strict=True)):
            if not all(map(math.isfinite, column)) or column != sorted(column):
                raise ValueError(f"rewards and labels must be finite and must not decrease, and are {column}")
        return points

    def worth(self, reward: float) -> float:
        rewards, labels = zip(*self.points, strict=True)
        return float(np.interp(reward, rewards, labels))


@dataclass(frozen=True, slots=True)
class Label:
    """A judge's reward for an answer, and the label that people gave it, from 0 to 1."""

    group: str
    reward: float
    label: float


class Calibration(BaseModel):
    """The curves of all groups; `by` is the metadata field of a task that names its group, empty for none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: str = ""
    groups: dict[str, Curve]

    def worth(self, reward: float, task: Task) -> float:
        """Return the calibrated value of a judge's reward for an episode of the task. Raises JudgeError if the task
        does not say its group."""
        if self.by and self.by not in task.metadata:
            raise JudgeError(
                f"task {task.task_id} has no metadata.{self.by}, which the judge is calibrated by",
                hint="write it into the tasks, or calibrate without --by",
            )
        return self.curve(str(task.metadata[self.by]) if self.by else EVERY).worth(reward)

    def curve(self, group: str) -> Curve:
        """The group's own, or that of all."""
        return self.groups.get(group) or self.groups[EVERY]

    @classmethod
    def fitted(cls, labels: Sequence[Label], by: str = "") -> Calibration:
        """A curve of all labels, and one of each group that has at least `FEWEST`."""
        of_group: dict[str, list[Label]] = defaultdict(list)
        for each in labels:
            of_group[each.group].append(each)
        of_group.pop(EVERY, None)  # labels that name no group count in the curve of all alone
        own = {name: _curve(each) for name, each in sorted(of_group.items()) if by and len(each) >= FEWEST}
        return cls(by=by, groups={EVERY: _curve(labels)} | own)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Raises ConfigError if the file cannot be read, or holds no calibration."""
        try:
            found = cls.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeError, yaml.YAMLError, ValidationError, RecursionError) as cause:
            raise ConfigError(
                f"{path} holds no calibration: {cause}", hint="write one with `astune check judge --calibrate`"
            ) from cause
        if EVERY not in found.groups:
            raise ConfigError(f"{path} has no curve for all groups", hint='add one under the name ""')
        return found

    def save(self, path: Path) -> None:
        write_whole(path, yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def errors(labels: Sequence[Label], by: str = "") -> list[tuple[float, float]]:
    """The distance of each label from the judge's reward, and from its worth by a calibration that has not seen it."""
    found: list[tuple[float, float]] = []
    for fold in range(min(_FOLDS, len(labels))):
        rest = [each for number, each in enumerate(labels) if number % _FOLDS != fold]
        calibration = Calibration.fitted(rest or labels, by)
        for each in labels[fold::_FOLDS]:
            worth = calibration.curve(each.group).worth(each.reward)
            found.append((abs(each.reward - each.label), abs(worth - each.label)))
    return found


def _curve(labels: Sequence[Label]) -> Curve:
    """Isotonic regression by pooling neighbours that are out of order; a block of them is its means."""
    blocks: list[list[Label]] = []
    by_reward: dict[float, list[Label]] = defaultdict(list)
    for each in labels:
        by_reward[each.reward].append(each)
    for _, block in sorted(by_reward.items()):
        blocks.append(block)
        while len(blocks) > 1 and _mean_label(blocks[-2]) >= _mean_label(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    points = [(round(fmean(each.reward for each in block), 6), round(_mean_label(block), 6)) for block in blocks]
    return Curve(labels=len(labels), points=points)


def _mean_label(block: Sequence[Label]) -> float:
    return fmean(each.label for each in block)
