"""200 runs of 1,000 steps and 63 metrics, written once and kept: what a folder of many experiments is like.

Each run has a held-out measurement every 50 steps, a whole configuration that differs in its seed and learning rate,
and no episodes. The numbers are random; what is measured is how fast they are read and drawn.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import orjson

from astune.config import dump, load_config
from astune.runs import EpisodeStore, RunDirectory, catalogue

RUNS = 200
STEPS = 1000
LONG_STEPS = 100_000
METRICS = 63
TEST_FREQ = 50
_RATES = (1e-6, 5e-6, 1e-5, 5e-5)
_SUCCESS = ("reward/success_of_all", "reward/success_rate", "reward/mean")


def written_runs(folder: Path) -> Path:
    """The folder of the runs, made where it is not there yet."""
    if not (folder / "done").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        for number in range(RUNS):
            _write(folder, number)
        (folder / "done").touch()
    return folder


def written_long(folder: Path) -> Path:
    """The folder of one run of 100,000 steps and one metric, made where it is not there yet."""
    if not (folder / "done").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        seeded = random.Random(0)
        with RunDirectory.create(folder, "long") as run:
            run.save_config(dump(load_config(None, [])))
            EpisodeStore(run.episodes_path).close()
            lines = (_line(step, "train", {"reward/mean": seeded.random()}) for step in range(1, LONG_STEPS + 1))
            run.metrics_path.write_bytes(b"".join(lines))
            run.finish("finished")
        (folder / "done").touch()
    return folder


def _write(folder: Path, number: int) -> None:
    seeded = random.Random(number)
    settings = [f"seed={number // len(_RATES)}", f"trainer.optim.lr={_RATES[number % len(_RATES)]}"]
    with RunDirectory.create(folder, f"experiment_{number % 10}") as run:
        run.save_config(dump(load_config(None, settings)))
        EpisodeStore(run.episodes_path).close()
        with open(run.metrics_path, "wb") as file:
            file.writelines(_lines(seeded))
        run.finish("finished")


def _lines(seeded: random.Random) -> list[bytes]:
    """The lines of a file of metrics, as `MetricsLog` writes them; that one puts each on disk by itself."""
    names = [name for entry in catalogue() if "<" not in (name := entry.name)]
    names = list(dict.fromkeys([*_SUCCESS, *names]))[:METRICS]
    names += [f"own/metric_{at}" for at in range(METRICS - len(names))]
    lines: list[bytes] = []
    for step in range(STEPS + 1):
        kinds = (["train"] if step else []) + (["validation"] if step % TEST_FREQ == 0 else [])
        for kind in kinds:
            values = {name: seeded.random() for name in names}
            lines.append(_line(step, kind, values))
    return lines


def _line(step: int, kind: str, values: dict[str, float]) -> bytes:
    line = {"step": step, "kind": kind, "time": 1.79e9 + step, "elapsed_s": 10.0 * step, "metrics": values}
    return orjson.dumps(line) + b"\n"
