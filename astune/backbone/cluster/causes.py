"""What went wrong first, of what Ray says."""

from __future__ import annotations

import re

_ERROR = re.compile(r"[\w.]+(Error|Exception|Exit)\b: ")


def first_cause(failure: Exception) -> str:
    """Ray's errors quote whole tracebacks, of which the last error is the cause."""
    errors = [line.strip() for line in str(failure).splitlines() if _ERROR.match(line.strip())]
    return errors[-1] if errors else f"{type(failure).__name__}: {failure}"
