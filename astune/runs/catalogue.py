"""Catalogue of metrics: the meaning of each name in a run's `metrics.jsonl`.

The viewer's page, `docs/en/metrics.md` and the report use its titles, units and meanings. A name in angle brackets
stands for any part of a name:

    train/entropy                      is   train/entropy
    time/rollout_s                     is   time/<phase>_s             with the phase `rollout`
    train/versions_behind_2/tokens     is   train/versions_behind_<n>/<measure>
    verl/actor/lr                      is   verl/<name>
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import orjson

MetricGroup = Literal["reward", "episodes", "training", "mismatch", "watch", "engine", "time", "balance", "engine_own"]
GROUPS: Mapping[MetricGroup, str] = {
    "reward": "Reward and success",
    "episodes": "Episodes",
    "training": "Training",
    "mismatch": "Engine against trainer",
    "watch": "Signs of reward hacking",
    "engine": "Engine",
    "time": "Time",
    "balance": "Token account",
    "engine_own": "Measured by verl or Trinity-RFT",
}
_PLACEHOLDER = re.compile(r"<(\w+)>")


@dataclass(frozen=True, slots=True)
class Metric:
    """An entry. `unit` is empty for dimensionless metrics; `share` is a fraction of 1. `*_zh` are the same in
    Chinese."""

    name: str
    title: str
    title_zh: str
    unit: str
    group: MetricGroup
    meaning: str
    meaning_zh: str

    def match(self, name: str) -> dict[str, str] | None:
        """Match `name` against the placeholders and return their values; None if it does not match."""
        found = _expression(self.name).fullmatch(name)
        return None if found is None else found.groupdict()

    def title_of(self, name: str) -> str:
        """Return the title with the placeholders filled in: `Seconds of rollout`."""
        parts = self.match(name) or {}
        return _PLACEHOLDER.sub(lambda found: parts.get(found[1], found[0]), self.title)


@cache
def catalogue() -> tuple[Metric, ...]:
    """Return every entry in display order; if several match a name, the first one applies."""
    entries = orjson.loads(files("astune.runs").joinpath("metrics_catalogue.json").read_bytes())
    return tuple(Metric(group=group, **entry) for group in GROUPS for entry in entries[group])


def described(name: str) -> Metric | None:
    """Return the entry of a metric; None for a name that astune does not write."""
    return next((metric for metric in catalogue() if metric.match(name) is not None), None)


@cache
def _expression(name: str) -> re.Pattern[str]:
    parts = _PLACEHOLDER.split(name)  # text, placeholder, text, ...
    written = [f"(?P<{part}>.+)" if at % 2 else re.escape(part) for at, part in enumerate(parts)]
    return re.compile("".join(written))
