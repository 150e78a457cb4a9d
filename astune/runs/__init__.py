"""A run's directory: episodes, metrics, checkpoints, and how to find it again. Knows nothing of who trains."""

from astune.runs.checkpoints import Checkpoint, CheckpointStore
from astune.runs.directory import RunDirectory, RunInfo, RunStatus, resolve_run, runs_below
from astune.runs.episode_filter import EpisodeFilter, EpisodeOrder, SortKey
from astune.runs.episode_store import EpisodeStore
from astune.runs.episodes import DamagedStoreError, EpisodeReader, EpisodeRow, StepSummary
from astune.runs.metrics import (
    MetricKind,
    MetricsLine,
    MetricsLog,
    balance_metrics,
    balance_of,
    read_metrics,
    total_balance,
)
from astune.runs.texts import Snippet, message_text

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "DamagedStoreError",
    "EpisodeFilter",
    "EpisodeOrder",
    "EpisodeReader",
    "EpisodeRow",
    "EpisodeStore",
    "MetricKind",
    "MetricsLine",
    "MetricsLog",
    "RunDirectory",
    "RunInfo",
    "RunStatus",
    "Snippet",
    "SortKey",
    "StepSummary",
    "balance_metrics",
    "balance_of",
    "message_text",
    "read_metrics",
    "resolve_run",
    "runs_below",
    "total_balance",
]
