"""The text of docs/en/metrics.md: every metric with its unit and meaning, from the catalogue of metrics."""

from __future__ import annotations

from astune.runs import GROUPS, Metric, catalogue

INTRODUCTION = """# Metrics

<!-- Made from astune/runs/metrics_catalogue.json by `make docs`; changes made here are lost. -->

Every step writes one line into the run's `metrics.jsonl`, and so does every measurement on held-out tasks. This page
lists the metrics in it; their names are the same with every backbone. The [log viewer](viewer.md#curves) draws each of
them and shows its meaning when the pointer is on its title; [trackers](trackers.md) receive them under the same names.
`<...>` in a name stands for a name of yours, and the unit `share` is a fraction from 0 to 1.

```bash
astune export-metrics launcher_record/calculator --to csv --out metrics.csv
```

writes them as a table, a row for each step and split; `--to parquet` needs pyarrow. In Python,
[`Run.metrics`](python_api.md#what-a-run-left) returns them as plain rows and `Run.metrics_frame` as a pandas frame.
"""


def metrics_page() -> str:
    parts = [INTRODUCTION]
    for group, title in GROUPS.items():
        rows = [_row(metric) for metric in catalogue() if metric.group == group]
        parts.append("\n".join([f"## {title}", "", "| name | unit | what it is |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    return f"| `{metric.name}` | {metric.unit} | {metric.meaning} |"
