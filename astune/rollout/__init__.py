"""Running one episode, and many at once: deadlines, retries, failure policy."""

from astune.rollout.observer import NullObserver, RolloutObserver

__all__ = ["NullObserver", "RolloutObserver"]
