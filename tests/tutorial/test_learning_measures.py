"""What `make bench-learning` measures a trained calculator on, and how sure it is of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from astune.runs.interval import wilson_interval
from benchmarks import transfer


def test_an_interval_is_as_wide_as_templates_differ():
    apart = transfer.success({"solved": (50, 50), "not solved": (0, 50)})
    assert apart == pytest.approx((0.5, *wilson_interval(1, 2)))
    alike = transfer.success({f"template {n}": (9, 10) for n in range(10)})
    assert alike == pytest.approx((0.9, *wilson_interval(90, 100)))


@pytest.mark.slow
def test_the_sets_are_problems_that_no_run_trains_or_measures_on(gsm8k: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ASTUNE_GSM8K", str(gsm8k))
    sets = transfer.task_sets()
    assert {name: len(tasks) for name, tasks in sets.items()} == {
        transfer.FRESH: 400,
        transfer.HELD_OUT: 400,
        transfer.STORIES: 400,
        transfer.OTHER_STORIES: 400,
        transfer.GSM8K: 65,
        transfer.GSM8K_SIGNS: 17,
    }
    used = [*transfer.make_tasks("train", 1200), *transfer.make_tasks("validation", 96)]
    used += [*transfer.make_stories("train", 2400), *transfer.make_stories("validation", 96)]
    assert not {task.main_query for task in used} & {task.main_query for tasks in sets.values() for task in tasks}
