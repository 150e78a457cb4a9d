"""Chat templates to tokens and back: renders messages and tools for a model, and parses what it wrote."""

from astune.renderers.load import load_renderer
from astune.renderers.messages import Comparison, canonical, conversations, text_of
from astune.renderers.renderer import Rendered, Renderer, Reply, Tool

__all__ = [
    "Comparison",
    "Rendered",
    "Renderer",
    "Reply",
    "Tool",
    "canonical",
    "conversations",
    "load_renderer",
    "text_of",
]
