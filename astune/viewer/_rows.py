"""Rows of a list of episodes as the page reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from statistics import fmean
from typing import Any

from astune.runs import EpisodeFilter, EpisodeOrder, EpisodeReader, EpisodeRow, Snippet, find_text
from astune.viewer._answers import plain_text
from astune.viewer._run import ViewedRun

_ERROR_CHARACTERS = 500
"""The characters shown of an error in a list; the episode itself has all of it."""
_SHOWN = [field.name for field in fields(EpisodeRow) if field.name != "advantages"]


def page_of(
    run: ViewedRun, wanted: EpisodeFilter, order: EpisodeOrder, *, text: str | None, offset: int, limit: int
) -> dict[str, Any]:
    """One page of the episodes that are wanted, and how many there are in all."""
    if text is not None:
        wanted = replace(wanted, seqs=run.search(text))

    def read(reader: EpisodeReader) -> dict[str, Any]:
        rows = reader.find(wanted, order, limit=limit, offset=offset)
        snippets = [None if text is None else find_text(plain_text(reader.text(row.episode_id)), text) for row in rows]
        shown = [row_json(row, snippet) for row, snippet in zip(rows, snippets, strict=True)]
        return {"total": reader.count(wanted), "rows": shown}

    return run.ask(read)


def row_json(row: EpisodeRow, snippet: Snippet | None = None) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _SHOWN} | {
        "n_trained": 0 if row.untrained is not None else row.n_trained,
        "error_text": row.error_text[:_ERROR_CHARACTERS] if row.error_text is not None else None,
        "agents": row.agents or [],
        "advantage": advantage_of(row.advantages),
        "snippet": asdict(snippet) if snippet is not None else None,
    }


def advantage_of(advantages: Sequence[float] | None) -> float | None:
    """An episode's; the mean of its messages' where they have their own. None where it has none."""
    known = [value for value in advantages or () if not math.isnan(value)]
    return fmean(known) if known else None
