"""Rows of a list of episodes as the page reads them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean
from typing import Any

from astune.runs import EpisodeFilter, EpisodeOrder, EpisodeReader, EpisodeRow, Snippet, find_text
from astune.runs.facets import TaskSort, Turned, facets, tasks
from astune.viewer._answers import plain_text
from astune.viewer._run import ViewedRun

_ERROR_CHARACTERS = 500
"""The characters shown of an error in a list; the episode itself has all of it."""
_SHOWN = [field.name for field in fields(EpisodeRow) if field.name != "advantages"]


_NEWEST = EpisodeOrder("seq", descending=True)


@dataclass(frozen=True, slots=True)
class Sought:
    """Conditions that no column has: a text in the messages, a policy that answered. None is no condition."""

    text: str | None = None
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class TasksAsked:
    """Selection and order of tasks."""

    by: TaskSort = "task"
    descending: bool = False
    turned: Turned | None = None


def page_of(
    run: ViewedRun, wanted: EpisodeFilter, sought: Sought, order: EpisodeOrder, *, offset: int, limit: int
) -> dict[str, Any]:
    """A page of the episodes that are wanted, and how many there are in all."""
    wanted, text = searched(run, wanted, sought), sought.text

    def read(reader: EpisodeReader) -> dict[str, Any]:
        rows = reader.find(wanted, order, limit=limit, offset=offset)
        snippets = [None if text is None else find_text(plain_text(reader.text(row.episode_id)), text) for row in rows]
        questions = [run.question(reader, row) for row in rows]
        shown = [row_json(*each) for each in zip(rows, questions, snippets, strict=True)]
        return {"total": reader.count(wanted), "rows": shown}

    return run.ask(read)


def searched(run: ViewedRun, wanted: EpisodeFilter, sought: Sought) -> EpisodeFilter:
    """The filter that also asks for what is sought beside it."""
    found = [] if sought.text is None else [run.search(sought.text)]
    if sought.policy is not None:
        found.append([seq for seq, policies in run.policies().items() if sought.policy in policies])
    return replace(wanted, seqs=sorted(set.intersection(*map(set, found)))) if found else wanted


def facets_of(run: ViewedRun, wanted: EpisodeFilter, sought: Sought) -> dict[str, Any]:
    """Count the episodes per value, under all filters but the value's own; see `astune.runs.facets`."""
    under = searched(run, wanted, sought)
    counted = run.ask(lambda reader: facets(reader, under))
    return counted | {"policy": _policy_counts(run, wanted, replace(sought, policy=None))}


def _policy_counts(run: ViewedRun, wanted: EpisodeFilter, sought: Sought) -> list[tuple[str, int]]:
    if not (answered := run.policies()):
        return []
    under = searched(run, wanted, sought)
    shown = run.ask(lambda reader: reader.select("seq", under))
    counts = Counter(policy for (seq,) in shown for policy in answered.get(seq, ()))
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def tasks_of(
    run: ViewedRun, wanted: EpisodeFilter, sought: Sought, asked: TasksAsked, *, offset: int, limit: int
) -> dict[str, Any]:
    """A page of the tasks that the wanted episodes played, each with its success from step to step."""
    wanted = searched(run, wanted, sought)

    def read(reader: EpisodeReader) -> dict[str, Any]:
        found = tasks(reader, wanted, asked.by, descending=asked.descending, turned=asked.turned)
        shown = found[offset : offset + limit]
        newest = [reader.find(replace(wanted, task_id=one.task_id), _NEWEST, limit=1)[0] for one in shown]
        rows = [
            asdict(one)
            | {"turned": one.turned, "newest": row.episode_id, "split": row.split}
            | {"question": run.question(reader, row)}
            for one, row in zip(shown, newest, strict=True)
        ]
        return {"total": len(found), "rows": rows}

    return run.ask(read)


def row_json(row: EpisodeRow, question: str, snippet: Snippet | None = None) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _SHOWN} | {
        "question": question,
        "n_trained": 0 if row.untrained is not None else row.n_trained,
        "error_text": row.error_text[:_ERROR_CHARACTERS] if row.error_text is not None else None,
        "advantage": advantage_of(row.advantages),
        "snippet": asdict(snippet) if snippet is not None else None,
    }


def advantage_of(advantages: Sequence[float] | None) -> float | None:
    """An episode's; the mean of its messages' where they have their own. None where it has none."""
    known = [value for value in advantages or () if not math.isnan(value)]
    return fmean(known) if known else None
