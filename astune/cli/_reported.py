"""A command's result as a page in the viewer's style, beside what it prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astune.app.console import Console


@contextmanager
def reported(path: Path, title: str) -> Iterator[Console]:
    """A console for the result; what it prints is written into `path` as well, an HTML page that loads nothing. Raises
    ConfigError if the page cannot be written."""
    from html import escape

    from astune.app.console import Console
    from astune.app.html_page import page
    from astune.config.output_file import write_whole

    console = Console(record=True)
    yield console
    text = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>", clear=False)
    write_whole(path, page(title, f"<h1>{escape(title)}</h1>{text}"))
    console.say(f"report   {path}")
