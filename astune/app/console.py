"""A Rich console that others' text cannot steer: what every command prints on."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from astune.schema import visible


class Console(RichConsole):
    """Print control characters in text as symbols; Rich's own colours and cursor movements stay.

    Tables are laid out before this: text of others in a column is made `visible` where the column is filled.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def say(self, text: str, style: str | None = None) -> None:
        """Print text as it is: none of it is markup, and a long line is broken by the terminal alone, so that a path
        can be copied in one piece.
        """
        self.print(visible(text), style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)
