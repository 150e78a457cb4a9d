"""A run's directory: episodes, metrics, checkpoints, and how to find it again. Knows nothing of who trains."""

from astune.runs.checkpoints import Checkpoint, CheckpointStore
from astune.runs.directory import RunDirectory, RunInfo, RunStatus, resolve_run, runs_below
from astune.runs.episode_store import EpisodeStore
from astune.runs.episodes import EpisodeReader, EpisodeRow, StepSummary
from astune.runs.metrics import (
    MetricKind,
    MetricsLine,
    MetricsLog,
    balance_metrics,
    balance_of,
    read_metrics,
    total_balance,
)

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "EpisodeReader",
    "EpisodeRow",
    "EpisodeStore",
    "MetricKind",
    "MetricsLine",
    "MetricsLog",
    "RunDirectory",
    "RunInfo",
    "RunStatus",
    "StepSummary",
    "balance_metrics",
    "balance_of",
    "read_metrics",
    "resolve_run",
    "runs_below",
    "total_balance",
]
