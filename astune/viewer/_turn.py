"""The page of a turn of the flywheel, which the turn left in the folder of its training run."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response

from astune.runs import TURN_PAGE, read_regular
from astune.viewer._answers import Refusal

_BYTES = 2**25
_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A run may come from anywhere: its page runs nothing, loads nothing, and is of no origin."""


def has_turn(run: Path) -> bool:
    """Return whether a turn of the flywheel left its page in the run's folder."""
    return (run / TURN_PAGE).is_file() and not (run / TURN_PAGE).is_symlink()


def turn_page(run: Path) -> Response:
    """Return the page. Raises Refusal if the run belongs to no turn that came to its end."""
    hint = "`astune flywheel` writes it when a turn is decided"
    if (run / TURN_PAGE).is_symlink():  # to a file of this machine, in a run that came from elsewhere
        raise Refusal(404, "this run's page of a turn is a link", hint=hint)
    try:
        content = read_regular(run / TURN_PAGE, _BYTES)
    except OSError as cause:
        raise Refusal(404, f"this run has no page of a turn: {cause.strerror}", hint=hint) from cause
    headers = {"content-security-policy": _POLICY}
    return Response(content, media_type="text/html; charset=utf-8", headers=headers)
