"""Cause of a branch in the forest: why a conversation left the recorded one."""

from __future__ import annotations

from collections.abc import Sequence

from astune.renderers.messages import Identity

REWRITTEN = "template rewrote history"
VAGUE = ("message edited", "history replaced")
"""Causes that fit any two conversations; another branch may explain a new one better."""


def fork_cause(old: Sequence[Identity], new: Sequence[Identity]) -> str:
    """Classify the agent's edit from how both conversations continue after they diverge.

        recorded   U1 A1 U2        and the call has
                   U1* A1          -> message edited
                   A1 U2           -> message dropped
                   N U1 A1         -> message inserted
                   (nothing more)  -> history cut
                   X Y             -> history replaced

    `old` is the newest recorded continuation; `new` are the call's own remaining messages.
    """
    if not new:
        return "history cut"
    if old[0] in new[1:]:
        return "message inserted"
    if new[0] in old[1:]:
        return "message dropped"
    if old[0].role == new[0].role:
        return "message edited"
    return "history replaced"
