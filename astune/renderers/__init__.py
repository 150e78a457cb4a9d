"""Chat templates to tokens and back: what messages and tools are for a model, and what it wrote for a program."""

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
