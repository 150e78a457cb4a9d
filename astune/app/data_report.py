"""The report of made tasks as one page in the viewer's style: what came, what was taken out and why, examples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from astune.data_generator import ANSWER, Draft, Made
from astune.schema import Task

_SHOWN = 20
_LAYOUT = """
html,body{height:auto}body{max-width:72rem;margin:0 auto;padding:2rem 1rem;font-size:14px}
h1{font-size:22px}h2{font-size:16px;margin:2rem 0 .5rem}p{margin:.4rem 0}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;background:var(--raised)}
th,td{border-bottom:1px solid var(--line);padding:.4rem .6rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
.bar{display:block;height:.5rem;background:var(--accent);min-width:1px}.faint{color:var(--faint)}
details{margin:.4rem 0;padding:.4rem .6rem;background:var(--raised);border:1px solid var(--line)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font:12px/1.5 var(--mono)}
"""
_DARK = "if(matchMedia('(prefers-color-scheme: dark)').matches)document.documentElement.dataset.theme='dark'"


def report_html(made: Made, name: str) -> str:
    """The whole page; it opens from disk and loads nothing."""
    style = files("astune.viewer").joinpath("static", "app.css").read_text(encoding="utf-8")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(name)}</title>'
    head += f"<style>{style}{_LAYOUT}</style><script>{_DARK}</script>"
    body = "".join(_parts(made, name))
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _parts(made: Made, name: str) -> Iterable[str]:
    total = len(made.training) + len(made.held_out)
    yield f"<h1>{escape(name)}</h1>"
    split = f"{len(made.training):,} to train on, {len(made.held_out):,} held out"
    yield f"<p>{total:,} tasks of {made.wanted:,} wanted: {split}.</p>"
    yield (
        f'<p class="faint">{made.usage.calls:,} answers of the helper model, {made.usage.cached:,} of them kept from '
        f"before; {made.usage.tokens:,} tokens, {made.usage.tokens / max(1, total):,.0f} a task.</p>"
    )
    yield "<h2>From drafts to tasks</h2>"
    yield _table(["stage", "#came", "#kept", "", "taken out"], (_row(made, n) for n in range(len(made.stages))))
    if made.unread:
        yield "<h2>Not read</h2>"
        yield _table(["file", "why"], ([escape(each.name), escape(each.reason)] for each in made.unread))
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


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a column whose title begins with # holds numbers. Cells are HTML."""
    kinds = [' class="number"' if column.startswith("#") else "" for column in columns]
    head = "".join(f"<th{kind}>{column.lstrip('#')}</th>" for column, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _draft(draft: Draft) -> str:
    return f"<p><b>{escape(draft.question)}</b><br>{escape(draft.answer)}</p>"


def _task(task: Task) -> str:
    known = {name: value for name, value in task.metadata.items() if name != ANSWER}
    return (
        f"<details><summary>{escape(task.main_query[:300])}</summary><p><b>{escape(str(task.metadata[ANSWER]))}</b></p>"
        f"<pre>{escape(json.dumps(known, indent=2, ensure_ascii=False))}</pre></details>"
    )
