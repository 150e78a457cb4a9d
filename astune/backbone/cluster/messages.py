"""Messages that processes of an engine send to the run server, one class a kind.

Both sides use these classes: what is sent is checked where it is made and where it arrives. An episode alone is no
message, but the wire format of the episode store (`astune/runs/wire.py`).

    AttemptStarted, GroupFinished, BatchExplored     by the workers
    StepTrained, TasksMeasured, CheckpointSaved      by the trainer; Trinity's explorer measures
    PhaseBegan, WeightsSynced, RunFailed             by either

EpisodeOffered is no report: an episode for workers on other machines, which is answered when it has been played.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from astune.engine.base import EngineStats
from astune.schema import Split, TrainerError


class Message(BaseModel):
    """A report; `KIND` is the path that it is posted to. Numbers that are not finite stay what they are."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")
    KIND: ClassVar[str]


class AttemptStarted(Message):
    """An attempt at an episode began."""

    KIND = "started"
    episode_id: str
    split: Split
    task_id: str


class GroupFinished(Message):
    """All attempts of a task's group ended, and were reported.

    `uid` is the group's name, `<batch>/<task>` for training; `stats` is what the engine did for it alone.
    """

    KIND = "group"
    uid: str
    split: Split
    task_id: str
    episodes: list[str]
    failed: list[str]
    dropped: str | None
    stats: EngineStats


class BatchExplored(Message):
    """Every group of a batch was run, and reported."""

    KIND = "explored"
    batch: int


class TrainedRow(BaseModel):
    """A trained timeline, and what the engine's trainer computed of each trained token, in parallel lists.

    `messages` are nodes of the episode and the number of their tokens, `versions` those of the weights that sampled.
    """

    model_config = Message.model_config
    episode: str
    messages: list[tuple[int, int]]
    versions: list[int]
    old_log_probs: list[float]
    rollout_log_probs: list[float]
    entropy: list[float]
    ref_log_prob: list[float] | None = None
    """Under the starting weights; with a KL term only."""


class StepTrained(Message):
    """The weights took a step. `groups` are all of its groups, `phases` seconds, `metrics` the engine's own.

    `lr` is the learning rate of its update; None where nothing was trained.
    """

    KIND = "step"
    step: int
    groups: list[str]
    rows: list[TrainedRow]
    phases: dict[str, float]
    metrics: dict[str, float]
    lr: float | None


class TasksMeasured(Message):
    """The validation tasks were run with the weights of `step`, and their groups reported."""

    KIND = "validation"
    step: int
    seconds: float


class CheckpointSaved(Message):
    """The engine saved its own checkpoint of `step` in `folder`; `dtype` is what its servers compute in."""

    KIND = "saved"
    step: int
    folder: str
    dtype: str


class PhaseBegan(Message):
    """The run does something else now."""

    KIND = "phase"
    name: str


class WeightsSynced(Message):
    """Servers loaded the weights of step `version`; with each server's answer to a fixed text, as numbers."""

    KIND = "synced"
    version: int
    servers: dict[str, list[float]]


class RunFailed(Message):
    """A process of the engine cannot continue, and why."""

    KIND = "failed"
    error: str


class Answer(BaseModel):
    """The run server's answer. `success` follows a measurement; `enough` asks the engine to end the run."""

    success: float | None = None
    enough: bool = False


class EpisodeOffered(BaseModel):
    """An episode to be played by a worker; its fields are those of `Offer`, and `gateway` serves its model."""

    model_config = Message.model_config
    KIND: ClassVar[str] = "play"
    episode_id: str
    task: dict[str, Any]
    key: str
    model: str
    lane: Split
    gateway: str


class EpisodePlayed(BaseModel):
    """The worker's result; None where there is none, and why: `lost` says that the worker is gone."""

    result: dict[str, Any] | None = None
    failure: str = ""
    hint: str = ""
    lost: bool = False


MESSAGES = {kind.KIND: kind for kind in Message.__subclasses__()}


def parse_report(kind: str, body: bytes) -> Message:
    """Parse a report's JSON. Raises TrainerError where it is none of the kind."""
    defect = "this is a defect of astune"
    if kind not in MESSAGES:
        raise TrainerError(f"there is no report of the kind {kind}", hint=defect)
    try:
        return MESSAGES[kind].model_validate_json(body)
    except ValidationError as cause:
        raise TrainerError(f"a report of the kind {kind} could not be read: {cause}", hint=defect) from cause
