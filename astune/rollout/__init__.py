"""Execution of one episode, and of many concurrently: deadlines, retries, failure policy."""

from astune.rollout.balance import token_balance
from astune.rollout.demonstrations import DEMONSTRATIONS, PREFERENCES, DemonstrationPool
from astune.rollout.episode import INTERRUPTED
from astune.rollout.observer import NullObserver, RolloutObserver
from astune.rollout.pool import RolloutPool

__all__ = [
    "DEMONSTRATIONS",
    "INTERRUPTED",
    "PREFERENCES",
    "DemonstrationPool",
    "NullObserver",
    "RolloutObserver",
    "RolloutPool",
    "token_balance",
]
