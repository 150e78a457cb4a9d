"""A page of HTML in the viewer's style: it opens from disk and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

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


def page(title: str, body: str) -> str:
    """The whole page; `body` is HTML."""
    style = files("astune.viewer").joinpath("static", "app.css").read_text(encoding="utf-8")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    head += f"<style>{style}{_LAYOUT}</style><script>{_DARK}</script>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a column whose title begins with # holds numbers. Cells are HTML."""
    kinds = [' class="number"' if column.startswith("#") else "" for column in columns]
    head = "".join(f"<th{kind}>{column.lstrip('#')}</th>" for column, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
