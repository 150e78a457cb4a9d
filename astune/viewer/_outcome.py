"""Outcome of a run, shown first on the page: before and after, what was trained, warnings, and three episodes.

Everything is read from metrics and episodes, as far as a run has them; for an active run they are incomplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from astune.runs import EpisodeReader, EpisodeRow, MetricsLine, StepSummary, total_balance
from astune.runs.report import counted, finished, transcript
from astune.schema import RunStoreError
from astune.viewer._answers import plain_text
from astune.viewer._found import question_of
from astune.viewer._rows import advantage_of, row_json
from astune.viewer.warnings import warnings_of

_TEXT_CHARACTERS = 400
_LAST_STEPS = 10
"""Training steps among whose episodes the most surprising one is looked for."""


def outcome_of(reader: EpisodeReader | None, lines: Sequence[MetricsLine]) -> dict[str, Any]:
    """The outcome as the page reads it; `reader` is None where the run has no episodes that can be read."""
    summaries = finished(reader.summaries() if reader is not None else [], lines)
    before, after = before_and_after([each for each in summaries if each.split == "validation"])
    training = [line for line in lines if line.kind == "train"]
    last_step = max((line.step for line in training), default=0)
    balance = total_balance(training)
    return {
        "before": None if before is None else _measured(before),
        "after": None if after is None else _measured(after),
        "measurements": sum(each.split == "validation" for each in summaries),
        "trained": {
            "steps": last_step,
            "tasks": reader.n_tasks("train", until=last_step) if reader is not None else 0,
            "episodes": sum(each.episodes for each in summaries if each.split == "train"),
            "seconds": training[-1].metrics.get("time/trained_s") if training else None,
            "elapsed_s": lines[-1].elapsed_s if lines else None,
        },
        "balance": {
            "sampled": balance.sampled,
            "trained": balance.trained,
            "masked": dict(balance.masked.most_common()),
            "dropped": dict(balance.dropped.most_common()),
        },
        "warnings": [asdict(warning) for warning in warnings_of(lines)],
        "episodes": _worth_a_look(reader, before, after, training) if reader is not None else [],
    }


def before_and_after(measured: Sequence[StepSummary]) -> tuple[StepSummary | None, StepSummary | None]:
    """The first measurement, and that of the best model after it: of equals the first."""
    if not measured:
        return None, None
    before, *later = measured
    return before, max(later, key=lambda each: each.success_rate, default=None)


def _measured(summary: StepSummary) -> dict[str, Any]:
    low, high = summary.interval
    return asdict(summary) | {"success": summary.success_rate, "low": low, "high": high}


def _worth_a_look(
    reader: EpisodeReader, before: StepSummary | None, after: StepSummary | None, training: Sequence[MetricsLine]
) -> list[dict[str, Any]]:
    """The held-out task that improved most, the one that got worst, and the episode with the largest advantage."""
    found: list[dict[str, Any]] = []
    if before is not None and after is not None:
        early, late = _by_task(reader, before.step), _by_task(reader, after.step)
        tasks = sorted(early.keys() & late.keys(), key=counted)
        change = {task: _rate(late[task]) - _rate(early[task]) for task in tasks}
        for kind, sign, success in (("solved", 1, True), ("broken", -1, False)):
            task = max(tasks, key=lambda task: sign * change[task], default=None)
            if task is not None and sign * change[task] > 0:
                found.append(_shown(reader, kind, _one(late[task], success), _one(early[task], not success)))
    if (row := _most_surprising(reader, [line.step for line in training[-_LAST_STEPS:]])) is not None:
        found.append(_shown(reader, "surprising", row, None))
    return found


def _by_task(reader: EpisodeReader, step: int) -> Mapping[str, list[EpisodeRow]]:
    rows: dict[str, list[EpisodeRow]] = {}
    for row in reader.list(step=step, split="validation"):
        if row.status != "error":
            rows.setdefault(row.task_id, []).append(row)
    return rows


def _rate(rows: Sequence[EpisodeRow]) -> float:
    return sum(bool(row.success) for row in rows) / len(rows)


def _one(rows: Sequence[EpisodeRow], success: bool) -> EpisodeRow:
    return next((row for row in rows if bool(row.success) == success), rows[0])


def _most_surprising(reader: EpisodeReader, steps: Iterable[int]) -> EpisodeRow | None:
    """The episode that did least as the others of its group: the newest with the largest advantage, either way."""
    best: tuple[float, EpisodeRow] | None = None
    for step in steps:
        for row in reader.list(step=step, split="train"):
            size = abs(advantage_of(row.advantages) or 0.0)
            if size > 0 and row.untrained is None and (best is None or size >= best[0]):
                best = size, row
    return best[1] if best is not None else None


def _shown(reader: EpisodeReader, kind: str, row: EpisodeRow, earlier: EpisodeRow | None) -> dict[str, Any]:
    question = answer = ""
    with suppress(RunStoreError):  # a damaged episode is named when it is opened
        episode = reader.read(row.episode_id)
        question, turns = question_of(episode), transcript(episode).turns
        answer = next((turn.text for turn in reversed(turns) if turn.written), "")
    return {
        "kind": kind,
        "row": row_json(row, question),
        "before": earlier.episode_id if earlier is not None else None,
        "question": question,
        "answer": plain_text(answer[:_TEXT_CHARACTERS]),
    }
