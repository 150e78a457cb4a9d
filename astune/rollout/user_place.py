"""Where in the user's own code something was raised, which is where they will look first."""

from __future__ import annotations

import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])


def place_of(cause: BaseException) -> str:
    """` (file:line)` of the innermost frame outside of installed packages; empty where there is none."""
    frames = traceback.extract_tb(cause.__traceback__)
    foreign = ("site-packages", _PACKAGE, "<frozen")
    own = [frame for frame in frames if not any(part in frame.filename for part in foreign)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
