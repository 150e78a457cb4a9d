"""Chat templates to tokens and back: renders messages and tools for a model, and parses what it wrote."""

from __future__ import annotations

from pathlib import Path

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


def load_renderer(folder: Path, name: str | None = None) -> Renderer:
    """The renderer of the model in `folder`, derived from its own chat template and checked against it.

    Args:
        name: what errors call the model; its folder's name where none is given.

    Raises:
        ConfigError: the folder has no usable tokenizer or template, or the template cannot be extended.
    """
    # Templates need jinja2, which a core that is installed alone has not.
    from astune.renderers.template import ChatTemplate
    from astune.renderers.template_renderer import TemplateRenderer

    return TemplateRenderer(ChatTemplate.load(folder, name))
