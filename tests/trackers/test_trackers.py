"""Trackers of a run: what they receive, and that nothing they do fails or delays it."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from small_experiment import small_experiment

import astune
from astune.config import load_config
from astune.runs import RunDirectory
from astune.schema import ConfigError
from astune.trackers import NamedTracker, TrackedRun, Tracker, Trackers, load_trackers

OWN = '''
import json
import os
from pathlib import Path

from astune import Tracker
from astune.backbone.base import Backbone


class Tasks(Tasks):
    def validation_tasks(self):
        return []


class Lines(Tracker):
    """Writes what it receives into a file."""

    def __init__(self, file="lines.jsonl"):
        self.file = Path(file)

    def write(self, *line):
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\\n")

    def start(self, run, config):
        self.write("start", run.run_id, run.name, run.project, run.last_step, config.trainer.total_steps)
        return "lines.jsonl"

    def log(self, step, split, metrics):
        self.write("log", step, split, "reward/mean" in metrics)

    def finish(self, status):
        self.write("finish", status)


class Failing(Lines):
    def log(self, step, split, metrics):
        raise OSError("the server is away")


class OneStep(Backbone):
    async def train(self, config, parts, run, observer, *, base_dir=None):
        with run.open_metrics() as metrics:
            metrics.append(1, "train", {"reward/mean": 0.5})
'''


@pytest.fixture
def settings(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Values of an experiment in the working directory."""
    monkeypatch.chdir(tmp_path)
    return small_experiment(tmp_path, tiny_folder, file="own.py", more=OWN) | {
        "experiment_name": "tracked",
        "trackers": ["tensorboard", {"type": "own.py->Lines", "params": {"file": "mine.jsonl"}}],
    }


def lines(path: str = "mine.jsonl") -> list[list[object]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.slow
def test_a_users_tracker_receives_a_run_and_the_same_one_when_it_resumes(settings, capsys):
    run = astune.train(settings)
    [start, *logged, finish] = lines()
    run_id, name = start[1], f"tracked/{run.path.name}"
    assert start == ["start", run_id, name, "astune", -1, 2]
    assert logged == [["log", 1, "train", True], ["log", 2, "train", True]]
    assert finish == ["finish", "finished"]
    assert "own.py->Lines: lines.jsonl" in capsys.readouterr().out
    assert list((run.path / "backup" / "sources").rglob("own.py"))
    astune.resume(run, trainer={"total_steps": 3}, quiet=True)
    assert lines()[4:] == [
        ["start", run_id, name, "astune", 2, 3],
        ["log", 3, "train", True],
        ["finish", "finished"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["debug", "own.py->OneStep"])
def test_every_backbone_is_tracked(settings, backbone):
    astune.train(settings, backbone=backbone, quiet=True)
    assert [line[:1] for line in lines()] == [["start"], ["log"], ["finish"]]
    assert list(Path().glob("launcher_record/tracked/*/tensorboard/events*"))


@pytest.mark.slow
def test_a_failing_tracker_is_one_warning_and_the_run_goes_on(settings, capsys):
    trackers = [{"type": "own.py->Failing", "params": {"file": "mine.jsonl"}}]
    assert astune.train(settings, trackers=trackers).status == "finished"
    out = capsys.readouterr().out
    assert out.count("warning: tracker own.py->Failing failed, and it may lack some metrics: OSError") == 1
    assert "the server is away" in out
    assert lines()[-1] == ["finish", "finished"]


class Recording(Tracker):
    """Keeps what it receives; waits in `log` until it may go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.received: list[object] = []

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        self.may_go_on.wait(60)
        self.received.append((step, split, dict(metrics)))


class Unstartable(Tracker):
    def start(self, run: TrackedRun, config: object) -> None:
        raise SystemExit("log in first\x1b[2J")

    def log(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        raise AssertionError("it was never started")


def following(run: RunDirectory, tracker: Tracker, notes: list[str], **more: float) -> Trackers:
    config = load_config(None)
    tracked = TrackedRun(run.info().run_id, run.path, "project", "experiment")
    run.follower = trackers = Trackers([NamedTracker("mine", tracker)], tracked, config, notes.append, **more)
    return trackers


def test_a_tracker_that_hangs_delays_no_step_and_is_left_at_the_end(tmp_path):
    notes: list[str] = []
    tracker = Recording()
    with RunDirectory.create(tmp_path, "experiment") as run:
        trackers = following(run, tracker, notes, finishes_within_s=0.05)
        with run.open_metrics() as metrics:
            metrics.append(1, "train", {"loss": math.nan})
            metrics.append(2, "train", {"loss": 1.0})
        trackers.finish("finished")
        assert [line.step for line in run.metrics()] == [1, 2]
    [note] = notes
    assert note.startswith("tracker mine: not done 0.05 s after the run ended")
    tracker.may_go_on.set()


def test_a_tracker_that_does_not_start_is_left_out_with_one_warning(tmp_path):
    notes: list[str] = []
    with RunDirectory.create(tmp_path, "experiment") as run:
        trackers = following(run, Unstartable(), notes)
        with run.open_metrics() as metrics:
            metrics.append(1, "train", {"loss": 1.0})
        trackers.finish("failed")
    [note] = notes
    assert "tracker mine failed, and nothing is sent to it: " in note
    assert "log in first␛[2J" in note


def test_lines_that_a_resume_takes_back_are_not_sent_a_second_time(tmp_path):
    notes: list[str] = []
    tracker = Recording()
    tracker.may_go_on.set()
    with RunDirectory.create(tmp_path, "experiment") as run:
        with run.open_metrics() as metrics:
            for step in (1, 2, 3):
                metrics.append(step, "train", {"loss": 1.0})
        trackers = following(run, tracker, notes)
        run.rewind(1)
        with run.open_metrics() as metrics:
            metrics.append(2, "train", {"loss": 0.5})
        trackers.finish("finished")
    assert tracker.received == [(2, "train", {"loss": 0.5})]
    assert notes == []


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("wandbb", r"trackers\[0\]: there is no tracker 'wandbb'", "did you mean wandb"),
        ("{type: tensorboard, params: {folder: x}}", r"trackers\[0\]\.params\.folder: .* no argument folder", ""),
        ("{type: tensorboard, param: {}}", r"unknown key `astune\.trackers\.param`", r"trackers\.params"),
        ("[{params: {}}]", r"`astune\.trackers\.type` is missing", ""),
    ],
)
def test_what_is_no_tracker_is_an_error_that_names_the_fix(written, message, hint):
    with pytest.raises(ConfigError, match=message) as error:
        load_trackers(load_config(None, [f"trackers={written}"]))
    assert hint.replace("\\", "") in f"{error.value.hint}{error.value}"


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch, tmp_path):
    """Also where the working directory has a folder of that name, as wandb makes one."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(ConfigError, match="the package wandb is not installed") as error:
        load_trackers(load_config(None, ["trackers=wandb"]))
    assert "[wandb]'" in error.value.hint


@pytest.mark.slow
def test_what_is_not_recorded_needs_no_trackers_library(settings, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "wandb" else found(name, *more))
    (Path.cwd() / "held_out.py").write_text(
        "from own import *\n\n\nclass HeldOut(Tasks):\n    def validation_tasks(self):\n"
        "        return [Task('held out', 'Say 9')]\n"
    )
    settings |= {"trackers": "wandb", "task_reader": {"type": "held_out.py->HeldOut"}}
    assert astune.evaluate(settings, quiet=True).n_tasks == 1
    with pytest.raises(ConfigError, match="the package wandb is not installed"):
        astune.debug(settings, quiet=True)


@pytest.mark.parametrize("written", ["wandb", "[wandb]", "{type: wandb}", "[{type: wandb}]"])
def test_one_tracker_is_written_as_a_name_or_in_a_list(written):
    assert [tracker.type for tracker in load_config(None, [f"trackers={written}"]).trackers] == ["wandb"]


def test_no_tracker_is_an_empty_list(tmp_path):
    assert load_config(None, ["trackers=[]"]).trackers == []


@pytest.mark.slow
def test_a_run_that_ctrl_c_ends_is_shown_as_interrupted(settings, tmp_path):
    (tmp_path / "stops.py").write_text(
        "import os, signal\nfrom pathlib import Path\nfrom own import Agent\n\n\nclass Stops(Agent):\n"
        "    async def execute(self, task, proxy):\n        if not Path('stopped').exists():\n"
        "            Path('stopped').touch()\n            os.kill(os.getpid(), signal.SIGINT)\n"
        "        return await super().execute(task, proxy)\n"
    )
    former = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        astune.train(settings, rollout={"workflow": "stops.py->Stops"}, quiet=True)
    assert signal.getsignal(signal.SIGINT) is former
    assert lines()[-1] == ["finish", "interrupted"]


@pytest.mark.slow
def test_importing_the_interface_imports_no_library():
    code = (
        "import astune, sys; astune.Tracker; from astune.trackers import load_trackers;"
        "from astune.config import load_config; load_trackers(load_config(None));"
        "assert not {'torch', 'tensorboard', 'wandb', 'swanlab', 'mlflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
