"""`astune report --html`: the result of a run as one page without scripts, which can be printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from astune.app.html_page import page, table
from astune.cli._report import measured_lines, summary_line
from astune.cli._svg import Line, shown, svg_chart
from astune.runs import MetricsLine, RunDirectory, StepSummary, described, read_regular
from astune.runs.interval import rate_text
from astune.runs.report import Comparison, RunReport, Transcript, accounts, read_report
from astune.schema import TokenBalance, visible
from astune.viewer.warnings import warnings_of

FILE = "report.html"
_CURVES = (
    *("reward/mean", "reward/success_rate", "episodes/sampled_tokens_mean", "episodes/turns_mean"),
    *("train/entropy", "train/grad_norm", "train/logprob_diff_mean", "engine/tokens_per_s_out"),
)
"""The metrics that have a curve of their own; all others stand in a table."""
_CONFIG_BYTES = 2**20
_TURN_CHARACTERS = 4000


def write_html(run: RunDirectory) -> str:
    """Write `plots/report.html` into the run's folder; returns the line that says so. Raises RunStoreError if a file of
    the run cannot be read, or the page cannot be written."""
    report = read_report(run)
    config = read_regular(run.config_path, _CONFIG_BYTES).decode(errors="replace") if run.config_path.is_file() else ""
    written = report_page(report, run.metrics(), config)
    path = run.save_plot(FILE, written.encode(errors="replace"))
    return f"{path}: {len(written) / 1e3:,.0f} kB, opens in any browser without a network"


def report_page(report: RunReport, lines: Sequence[MetricsLine], config: str) -> str:
    """The page, from its answer to the configuration."""
    parts = [
        f"<h1>{_text(report.experiment)}</h1>",
        f'<p class="faint">{_text(report.path.name)} · {_status(report)}</p>',
        f'<p class="answer">{_sentence(summary_line(report).replace("->", "→"))}</p>',
        *(f'<p class="faint">{_sentence(line)}.</p>' for line in measured_lines(report)),
        *(f'<p class="warn">{_sentence(each.text)}.</p>' for each in warnings_of(lines)),
        *_before_and_after(report),
        *_curves(report, lines),
        *_examples(report.comparisons),
        *_account(report.balance),
        *_all_metrics(lines),
        *(["<h2>Configuration</h2>", f"<pre>{_text(config)}</pre>"] if config else []),
    ]
    return page(f"{visible(report.experiment)} · ASTuner", "".join(parts))


def _status(report: RunReport) -> str:
    reason = f": {report.message}" if report.message else ""
    return _text(f"{report.status} after step {report.last_step}{reason}")


def _before_and_after(report: RunReport) -> Iterable[str]:
    before, after = report.before, report.after
    if before is None or after is None:
        return
    rows = [
        ("success, 95 % interval", _success(before), _success(after)),
        ("reward", _number(before.reward), _number(after.reward)),
        ("tokens written an episode", _number(before.answer_tokens), _number(after.answer_tokens)),
        ("turns an episode", _number(before.turns), _number(after.turns)),
        ("attempts in error", str(before.errors), str(after.errors)),
    ]
    yield "<h2>Before and after, on held-out tasks</h2>"
    yield table(["", f"#before (step {before.step})", f"#after (step {after.step})"], rows)
    (_, high), (low, _) = before.interval, after.interval
    if low <= high and after.success_rate > before.success_rate:
        yield '<p class="faint">The intervals overlap: chance alone may explain the difference.</p>'


def _curves(report: RunReport, lines: Sequence[MetricsLine]) -> Iterable[str]:
    figures = [_figure(name, report, lines) for name in _CURVES]
    if any(figures):
        yield (
            '<h2>Curves</h2><p class="faint">By step: <span class="ink-0">■ training</span>, '
            '<span class="ink-1">■ held-out tasks</span>; the band is the 95 % interval of success.</p>'
        )
        yield f'<div class="grid2">{"".join(figures)}</div>'


def _figure(name: str, report: RunReport, lines: Sequence[MetricsLine]) -> str:
    entry = described(name)
    if entry is None:
        return ""
    held_out, band = _values(lines, "validation", name), list[tuple[float, float, float]]()
    if name == "reward/success_rate":
        held_out = [(summary.step, summary.success_rate) for summary in report.validation]
        band = [(summary.step, *summary.interval) for summary in report.validation]
    curves = [Line("training", "line-0", _values(lines, "train", name)), Line("held-out", "line-1", held_out, band)]
    picture = svg_chart(entry.title, curves, from_zero=name != "reward/mean")
    unit = f' <span class="faint">{entry.unit}</span>' if entry.unit else ""
    caption = f'<b title="{escape(entry.meaning)}">{entry.title}</b>{unit}'
    return f"<figure><figcaption>{caption}</figcaption>{picture}</figure>" if picture else ""


def _values(lines: Sequence[MetricsLine], kind: str, name: str) -> list[tuple[float, float]]:
    found = {line.step: line.metrics[name] for line in lines if line.kind == kind and name in line.metrics}
    return sorted(found.items())


def _examples(comparisons: Sequence[Comparison]) -> Iterable[str]:
    if comparisons:
        yield '<h2>Examples</h2><p class="faint">The first held-out tasks by their ids, whatever became of them.</p>'
    for one in comparisons:
        yield f"<p><b>{_text(one.task_id)}</b> {_text(_cut(one.question))}</p>"
        yield f'<div class="grid2">{_half("before", one.before)}{_half("after", one.after)}</div>'


def _half(name: str, transcript: Transcript) -> str:
    style = "good" if transcript.success else "bad"
    shown_turns = "".join(
        f'<div class="turn{" written" if turn.written else ""}"><span class="faint">{_text(turn.role)}</span> '
        f"{_text(_cut(turn.text.strip() or '(nothing)'))}</div>"
        for turn in transcript.after_question
    )
    return f'<div class="half"><b class="{style}">{name}: {transcript.verdict}</b>{shown_turns}</div>'


def _account(balance: TokenBalance) -> Iterable[str]:
    if not balance.sampled:
        return
    rows = [(_text(account), f"{count:,}", part) for account, count, part in accounts(balance)]
    rows += [("sampled", f"{balance.sampled:,}", ""), ("unaccounted for", f"{balance.difference:,}", "")]
    yield "<h2>Token account</h2>"
    yield table(["tokens sampled in training", "#count", "#part"], rows)


def _all_metrics(lines: Sequence[MetricsLine]) -> Iterable[str]:
    kinds: Mapping[str, str] = {"train": "training", "validation": "held-out"}
    rows: list[tuple[str, ...]] = []
    for kind, title in kinds.items():
        names = sorted({name for line in lines if line.kind == kind for name in line.metrics})
        for name in names:
            values = [value for _, value in _values(lines, kind, name)]
            if finite := [value for value in values if math.isfinite(value)]:
                ends = map(_number, (values[0], values[-1], min(finite), max(finite)))
                meaning = entry.meaning if (entry := described(name)) is not None else ""
                rows.append((_text(name), title, *ends, _text(meaning)))
    if rows:
        whole = table(["metric", "", "#first", "#last", "#least", "#greatest", "what it is"], rows)
        yield f"<h2>All metrics</h2><details><summary>{len(rows)} series</summary>{whole}</details>"


def _success(summary: StepSummary) -> str:
    low, high = summary.interval
    return f"{rate_text(summary.success_rate)} ({rate_text(low)}–{rate_text(high)})"


def _number(value: float) -> str:
    return shown(value) if math.isfinite(value) else "–"


def _cut(text: str) -> str:
    hidden = len(text) - _TURN_CHARACTERS
    return text if hidden <= 0 else f"{text[:_TURN_CHARACTERS]} … ({hidden:,} more characters)"


def _sentence(text: str) -> str:
    return _text(text[:1].upper() + text[1:])


def _text(text: str) -> str:
    """Text of a run in a page: markup and control characters are shown, not obeyed."""
    return escape(visible(text))
