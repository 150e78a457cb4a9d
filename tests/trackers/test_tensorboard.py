"""TensorBoard's events: the same numbers as the run's own record, also after a resume."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from astune.config import load_config
from astune.runs import RunDirectory
from astune.trackers import TrackedRun, Trackers, load_trackers


def tracked(run: RunDirectory) -> Trackers:
    config, notes = load_config(None), list[str]()
    named = load_trackers(config)
    run.follower = trackers = Trackers(named, TrackedRun("0" * 16, run.path, "p", "e"), config, notes.append)
    return trackers


def record(path: Path, *steps: tuple[int, float], rewound_to: int | None = None) -> None:
    """A process that records steps of the run, after having taken back what was recorded beyond `rewound_to`."""
    with RunDirectory.open(path, write=True) as run:
        trackers = tracked(run)
        if rewound_to is not None:
            run.rewind(rewound_to)
        with run.open_metrics() as metrics:
            for step, value in steps:
                metrics.append(step, "train", {"reward/mean": value})
        trackers.finish("interrupted")


@pytest.mark.parametrize("kept", [-1, 0, 1, 2])
def test_it_shows_the_same_numbers_and_forgets_rewound_ones(tmp_path, kept: int) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with RunDirectory.create(tmp_path, "experiment") as run:
        path = run.path
    record(path, (1, 0.25), (2, 0.5), (3, 0.75))
    record(path, (kept + 1, 0.0), rewound_to=kept)
    events = event_accumulator.EventAccumulator(str(path / "tensorboard")).Reload()
    scalars = events.Scalars("train/reward/mean")
    before = [(number, number / 4) for number in (1, 2, 3) if number <= kept]
    assert [(event.step, event.value) for event in scalars] == [*before, (kept + 1, 0.0)]


@pytest.mark.slow
def test_writing_it_needs_no_torch(tmp_path) -> None:
    program = f"""
        import sys
        from pathlib import Path
        from astune.config import load_config
        from astune.trackers import TrackedRun, load_trackers
        config = load_config(None)
        [named] = load_trackers(config)
        named.tracker.start(TrackedRun("0" * 16, Path({str(tmp_path)!r}), "p", "e"), config)
        named.tracker.log(1, "train", {{"a": 1.0}})
        named.tracker.finish("finished")
        assert not {{"torch", "tensorflow", "matplotlib"}} & set(sys.modules), sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
