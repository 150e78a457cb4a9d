"""HTML page in the viewer's style that opens from disk and loads nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

_LAYOUT = """
html,body{height:auto}body{max-width:72rem;margin:0 auto;padding:2rem 1rem;font-size:14px}
h1{font-size:22px}h2{font-size:16px;margin:2rem 0 .5rem}p{margin:.4rem 0}.faint{color:var(--faint)}
.answer{font-size:24px;font-variant-numeric:tabular-nums}.good{color:var(--good)}.bad{color:var(--bad)}
p.warn{background:var(--warn-paper);color:var(--warn);border-radius:8px;padding:.5rem .9rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;background:var(--raised)}
th,td{border-bottom:1px solid var(--line);padding:.4rem .6rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}
th:not(.number),td:not(.number){min-width:5rem}td.number,th.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.bar{display:block;height:.5rem;background:var(--accent);min-width:1px}
details{margin:.4rem 0;padding:.4rem .6rem;background:var(--raised);border:1px solid var(--line);border-radius:8px}
summary{cursor:pointer}pre{white-space:pre-wrap;overflow-wrap:anywhere;font:12px/1.5 var(--mono)}
.grid2{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr));gap:14px}
figure,.half{border:1px solid var(--line);border-radius:10px;padding:10px 12px;min-width:0;background:var(--raised)}
.turn{margin:6px 0;padding:4px 10px;border-left:3px solid var(--line);white-space:pre-wrap;overflow-wrap:anywhere}
.written{border-color:var(--accent)}svg{width:100%;max-width:46rem;height:auto;display:block}
svg text{font-size:11px;fill:var(--faint)}svg .grid{stroke:var(--line)}svg .line{fill:none;stroke-width:2}
svg .band{stroke:none;opacity:.16}@media print{details>*{display:block}}
.keys{display:flex;flex-wrap:wrap;gap:4px 16px;margin:.5rem 0}.key{display:inline-block;width:16px;height:3px}
"""
_CURVES = ("#0072b2", "#b84e00", "#10653c", "#8a3fb0", "#7a5200", "#5b6470")
_CURVES_DARK = ("#5db4ea", "#f2884a", "#6fd6a0", "#d3a5ee", "#eec05f", "#9aa4b2")
N_CURVES = len(_CURVES)
"""Curves of different colours, of the classes `line-0` and so on."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_DARK = re.compile(r":root\[data-theme=['\"]?dark['\"]?\]\{[^}]*\}")


def page(title: str, body: str) -> str:
    """The whole page; `body` is HTML."""
    style = files("astune.viewer").joinpath("static", "app.css").read_text(encoding="utf-8")
    dark = "".join(f":root{{{found.partition('{')[2]}" for found in _DARK.findall(style))
    style += f"{_LAYOUT}{_curves(_CURVES)}@media(prefers-color-scheme:dark){{{dark}{_curves(_CURVES_DARK)}}}"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head += f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title><style>{style}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _curves(colours: Sequence[str]) -> str:
    """The colour of each class of curves: its line, its points, its band and its key."""
    return "".join(
        f"svg .line.line-{n}{{stroke:{colour}}}svg circle.line-{n},svg .band.line-{n}{{fill:{colour}}}"
        f".key.line-{n}{{background:{colour}}}.ink-{n}{{color:{colour}}}"
        for n, colour in enumerate(colours)
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Render a table; a column whose title begins with # holds numbers. Cells are HTML."""
    kinds = [' class="number"' if column.startswith("#") else "" for column in columns]
    head = "".join(f"<th{kind}>{column.lstrip('#')}</th>" for column, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
