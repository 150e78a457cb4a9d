"""A run's directory: episodes, metrics, checkpoints, and how to find it. Independent of the trainer."""

from astune.runs._files import FREE_THERE, Stamp, copy_folder, store_errors, write_atomic
from astune.runs._limits import open_regular, read_regular
from astune.runs._lock import RunLock
from astune.runs._schema import stamps_of
from astune.runs.catalogue import GROUPS, Metric, catalogue, described
from astune.runs.checkpoints import Checkpoint, CheckpointStore, checkpoint_around
from astune.runs.directory import RECORD_DIR, RunDirectory, is_run, outermost_run, resolve_run, runs_below
from astune.runs.episode_filter import EpisodeFilter, EpisodeOrder, SortKey
from astune.runs.episode_store import EpisodeStore
from astune.runs.episodes import DamagedStoreError, EpisodeReader, EpisodeRow, NoEpisodeError, StepSummary
from astune.runs.held_out import HeldOut
from astune.runs.info import RunInfo, RunKind, RunStatus
from astune.runs.metrics import (
    MetricsFollower,
    MetricsLine,
    MetricsLog,
    balance_metrics,
    balance_of,
    last_of,
    parse_line,
    read_metrics,
    total_balance,
)
from astune.runs.notes import TURN_PAGE, RunNotes
from astune.runs.salvage import salvage
from astune.runs.table import Row, TableFormat, columns_of, rows_of, write_table
from astune.runs.texts import Snippet, find_text, message_text

__all__ = [
    "FREE_THERE",
    "GROUPS",
    "RECORD_DIR",
    "TURN_PAGE",
    "Checkpoint",
    "CheckpointStore",
    "DamagedStoreError",
    "EpisodeFilter",
    "EpisodeOrder",
    "EpisodeReader",
    "EpisodeRow",
    "EpisodeStore",
    "HeldOut",
    "Metric",
    "MetricsFollower",
    "MetricsLine",
    "MetricsLog",
    "NoEpisodeError",
    "Row",
    "RunDirectory",
    "RunInfo",
    "RunKind",
    "RunLock",
    "RunNotes",
    "RunStatus",
    "Snippet",
    "SortKey",
    "Stamp",
    "StepSummary",
    "TableFormat",
    "balance_metrics",
    "balance_of",
    "catalogue",
    "checkpoint_around",
    "columns_of",
    "copy_folder",
    "described",
    "find_text",
    "is_run",
    "last_of",
    "message_text",
    "open_regular",
    "outermost_run",
    "parse_line",
    "read_metrics",
    "read_regular",
    "resolve_run",
    "rows_of",
    "runs_below",
    "salvage",
    "stamps_of",
    "store_errors",
    "total_balance",
    "write_atomic",
    "write_table",
]
