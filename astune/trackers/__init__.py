"""Trackers of a run's metrics: TensorBoard, Weights & Biases, SwanLab, MLflow, or a user's own class.

`metrics.jsonl` in the run's folder is the record; a tracker shows the same elsewhere, and never fails a run.
"""

from astune.trackers.base import EndStatus, TrackedRun, Tracker, tagged
from astune.trackers.following import Trackers
from astune.trackers.loading import NamedTracker, load_trackers

__all__ = ["EndStatus", "NamedTracker", "TrackedRun", "Tracker", "Trackers", "load_trackers", "tagged"]
