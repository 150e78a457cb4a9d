"""Chat templates to tokens, and the record of what an episode's agents read and wrote."""

from astune.context_tracker.merging import merged_again
from astune.context_tracker.messages import Comparison, canonical, conversations, text_of
from astune.context_tracker.renderer import Rendered, Renderer, Reply, Tool, load_renderer
from astune.context_tracker.replay import faults
from astune.context_tracker.tracker import ContextTracker, PendingCall

__all__ = [
    "Comparison",
    "ContextTracker",
    "PendingCall",
    "Rendered",
    "Renderer",
    "Reply",
    "Tool",
    "canonical",
    "conversations",
    "faults",
    "load_renderer",
    "merged_again",
    "text_of",
]
