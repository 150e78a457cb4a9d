"""Record of what an episode's agents read and wrote: the message forest, its timelines, and their replay."""

from astune.context_tracker.merging import merged_again
from astune.context_tracker.pending import PendingCall
from astune.context_tracker.replay import faults
from astune.context_tracker.tracker import ContextTracker

__all__ = ["ContextTracker", "PendingCall", "faults", "merged_again"]
