"""The text of docs/en/metrics.md: every metric with its unit and meaning, from the catalogue of metrics."""

from __future__ import annotations

from astune.runs import GROUPS, Metric, catalogue

INTRODUCTION = """# Metrics

<!-- Made from astune/runs/metrics_catalogue.json by `make docs`; changes made here are lost. -->

Every step writes one line into the run's `metrics.jsonl`, and every measurement on held-out tasks another one. These
are the names in it, the same with every backbone that has the figure. The [log viewer](viewer.md#curves) draws each
and says what it is when the pointer is on its title; [trackers](trackers.md) get them under the same names. A name in
angle brackets stands for any part of a name, and a unit of `share` is a part of 1.

```bash
astune export-metrics launcher_record/calculator --to csv --out metrics.csv
```

writes them as a table, a row for each step and split; `--to parquet` needs pyarrow. In Python they are
[`Run.metrics`](python_api.md#what-a-run-left) as plain rows and `Run.metrics_frame` as a pandas frame.
"""


def metrics_page() -> str:
    parts = [INTRODUCTION]
    for group, title in GROUPS.items():
        rows = [_row(metric) for metric in catalogue() if metric.group == group]
        parts.append("\n".join([f"## {title}", "", "| name | unit | what it is |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    return f"| `{metric.name}` | {metric.unit} | {metric.meaning} |"
