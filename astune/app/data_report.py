"""Report of generated tasks as one page in the viewer's style: counts, rejected tasks with reasons, examples."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape

from astune.app.html_page import page, table
from astune.data_generator import ANSWER, Draft, Made
from astune.schema import Task

_SHOWN = 20


def report_html(made: Made, name: str) -> str:
    """The whole page; it opens from disk and loads nothing."""
    return page(name, "".join(_parts(made, name)))


def _parts(made: Made, name: str) -> Iterable[str]:
    total = len(made.training) + len(made.held_out)
    yield f"<h1>{escape(name)}</h1>"
    split = f"{len(made.training):,} training tasks, {len(made.held_out):,} validation tasks"
    yield f"<p>{total:,} tasks of {made.wanted:,} wanted: {split}.</p>"
    yield (
        f'<p class="faint">{made.usage.calls:,} answers of the helper model, {made.usage.cached:,} of them kept from '
        f"before; {made.usage.tokens:,} tokens, {made.usage.tokens / max(1, total):,.0f} a task.</p>"
    )
    yield "<h2>From drafts to tasks</h2>"
    yield table(["stage", "#came", "#kept", "", "taken out"], (_row(made, n) for n in range(len(made.stages))))
    if made.unread:
        yield "<h2>Not read</h2>"
        yield table(["file", "why"], ([escape(each.name), escape(each.reason)] for each in made.unread))
    yield "<h2>Taken out, by reason</h2>"
    for stage in made.stages:
        for reason, drafts in stage.examples.items():
            title = f"{escape(stage.name)}: {escape(reason)} ({stage.dropped[reason]:,})"
            yield f"<details><summary>{title}</summary>{''.join(map(_draft, drafts))}</details>"
    for title, tasks in (("To train on", made.training), ("Held out", made.held_out)):
        yield f"<h2>{title}: {min(_SHOWN, len(tasks))} of {len(tasks):,}</h2>"
        yield "".join(map(_task, tasks[:_SHOWN]))


def _row(made: Made, number: int) -> list[str]:
    stage = made.stages[number]
    most = max(each.came for each in made.stages) or 1
    why = "<br>".join(f"{n:,} x {escape(reason)}" for reason, n in stage.dropped.most_common())
    bar = f'<span class="bar" style="width:{100 * stage.kept / most:.1f}px"></span>'
    return [escape(stage.name), f"{stage.came:,}", f"{stage.kept:,}", bar, why]


def _draft(draft: Draft) -> str:
    return f"<p><b>{escape(draft.question)}</b><br>{escape(draft.answer)}</p>"


def _task(task: Task) -> str:
    known = {name: value for name, value in task.metadata.items() if name != ANSWER}
    return (
        f"<details><summary>{escape(task.main_query[:300])}</summary><p><b>{escape(str(task.metadata[ANSWER]))}</b></p>"
        f"<pre>{escape(json.dumps(known, indent=2, ensure_ascii=False))}</pre></details>"
    )
