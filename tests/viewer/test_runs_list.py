"""The list of runs: held-out success, seed, and the settings in which runs differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from viewer_stage import get, serving

from astune.config import dump, load_config
from astune.runs import HeldOut, RunDirectory
from astune.viewer import _metrics
from astune.viewer._conversations import Conversations
from astune.viewer._events import WatchedFolder
from astune.viewer._folder import Folder
from astune.viewer._library import Library
from astune.viewer._metrics import HeldOutScores
from astune.viewer._settings import Settings, differing, read_settings


def write(record: Path, scores: dict[int, float], config: str) -> Path:
    with RunDirectory.create(record, "demo") as run, run.open_metrics() as metrics:
        run.save_config(config)
        for step, score in scores.items():
            metrics.append(step, "train", {"reward/success_of_all": 1.0})
            metrics.append(step, "validation", {"reward/success_of_all": score})
        run.finish("finished")
        return run.path


def config(**more: object) -> str:
    lines = [f"  {key}: {value}" for key, value in more.items()]
    return "\n".join(["astune:", "  backbone: local", "  model: {path: tiny}", *lines])


def test_a_run_is_listed_with_its_first_best_and_last_measurement_and_its_seed(tmp_path):
    write(tmp_path, {0: 0.25, 2: 0.75, 4: 0.75, 6: 0.5}, config(seed=7))
    with serving(tmp_path) as client:
        [run] = get(client, "runs")
    assert run["seed"] == 7
    assert run["held_out"] == {"first": 0.25, "best": 0.75, "best_step": 2, "last": 0.5, "last_step": 6}


def test_runs_have_the_settings_in_which_they_differ(tmp_path):
    for rate, seed in ((1e-5, 0), (5e-5, 1)):
        write(tmp_path, {}, config(seed=seed, trainer=f"{{optim: {{lr: {rate}}}, total_steps: 9}}"))
    with serving(tmp_path) as client:
        runs = get(client, "runs")
    assert sorted(float(run["settings"]["trainer.optim.lr"]) for run in runs) == [1e-5, 5e-5]
    assert {key for run in runs for key in run["settings"]} == {"trainer.optim.lr"}


def test_what_was_set_is_told_from_what_was_left_at_its_default(tmp_path):
    chosen = ["trainer.optim.lr=0.25", "task_reader.params.size=3", "experiment_name=demo", "trainer.total_steps=100"]
    run = write(tmp_path, {}, dump(load_config(None, chosen)))
    with serving(run) as client:
        told = get(client, "run", run="")["changed"]
    assert told == [["task_reader.params.size", "3", None], ["trainer.optim.lr", "0.25", "1e-6"]]


def test_of_a_run_without_a_configuration_nothing_was_set(tmp_path):
    with serving(write(tmp_path, {}, "astune: [")) as client:
        assert get(client, "run", run="")["changed"] == []


def test_a_setting_that_a_run_does_not_have_differs_from_nothing():
    runs = [Settings(values={"lr": "1", "x": "1"}), Settings(values={"lr": "2"}), Settings(values={"lr": "1"})]
    assert differing(runs) == [{"lr": "1"}, {"lr": "2"}, {"lr": "1"}]


def test_long_settings_are_compared_whole_and_shown_cut_and_different(tmp_path):
    prompt = "x" * 200
    for end in ("a", "b", "b"):
        write(tmp_path, {}, config(prompt=f"{prompt}{end}", tools=f"[{prompt}, {end}]", same=prompt))
    with serving(tmp_path) as client:
        settings = [run["settings"] for run in get(client, "runs")]
    for key in ("prompt", "tools"):
        shown = sorted(run[key] for run in settings)
        assert len(set(shown)) == 2
        assert {len(text) for text in shown} == {80}
        assert all("xxx… #" in text for text in shown)
    assert all("same" not in run for run in settings)


@pytest.mark.parametrize(
    "text",
    ["", "astune: 3", "astune: [1]", "astune: {model: 3}", "astune: {model: [x]}", "a: &a [*a]", '{"astune": {"x": 1'],
)
def test_a_configuration_that_cannot_be_read_has_no_settings(text):
    assert read_settings(text).model is None


@pytest.mark.parametrize(
    "text",
    [
        "astune:\n  backbone: local\n  seed: 3\n  own: {a: [1, 2], b: 1e-6}\n  list:\n  - 1\n  - x\n",
        "astune:\n  a: &same {x: 1}\n  b: *same\n",
        "astune:\n  a: {x: 1,\n  y: 2}\n  b: 'one\n  two: three'\n",
        "astune:\n\n  a: |\n    text\n\n    of: lines\n  # a note\n  a: last\n",
        "astune: {a: 1}\nother: 2\n",
        dump(load_config(None, ["trainer.optim.lr=1e-6"])),
    ],
)
def test_a_configuration_says_the_same_read_section_by_section_and_as_a_whole(text):
    whole = read_settings(f"# with this line it is none that we wrote\n{text}")
    assert read_settings(text) == whole
    assert whole.values


def test_settings_are_texts_that_an_answer_can_hold():
    read = read_settings("astune: {b: {c: [1, 2]}, d: null, e: {}, f: 数, seed: 99999999999999999999}")
    assert (read.values["b.c"], read.values["d"], read.values["e"], read.seed) == ("[1,2]", "null", "{}", None)
    assert read.values["f"] == "数"


def measured(step: int, score: float, more: str = "") -> bytes:
    """A line of a measurement, as long as one likes."""
    head = b'{"step":%d,"kind":"validation","time":1.0,"elapsed_s":1.0,"metrics":' % step
    return head + b'{"reward/success_of_all":%f%s}}\n' % (score, more.encode())


def test_scores_are_read_of_lines_longer_and_shorter_than_what_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(_metrics, "_BLOCK_BYTES", 200)
    path = tmp_path / "metrics.jsonl"
    more = "".join(f',"own/{at}":1.0' for at in range(60))
    lines = [measured(step, step / 8, more if step % 3 == 0 else "") for step in range(8)]
    training = measured(9, 1.0, ',"own/\\"validation\\"":1.0').replace(b'"kind":"validation"', b'"kind":"train"')
    path.write_bytes(training + training.join(lines))
    assert HeldOutScores(path).read() == HeldOut(0.0, 0.875, 7, 0.875, 7)


def test_who_listens_to_a_folder_is_greeted_without_another_look_at_it(tmp_path, monkeypatch):
    write(tmp_path, {0: 0.25}, config())
    looks: list[None] = []
    found = Folder.runs

    def runs(self: Folder) -> dict[str, Path]:
        looks.append(None)
        return found(self)

    monkeypatch.setattr(Folder, "runs", runs)
    watched = WatchedFolder(Library(Folder(tmp_path)), Conversations(None))
    watched.look()
    assert [event.data for event in watched.greeting()] == [{"total": 1}]
    assert len(looks) == 1


def test_scores_follow_a_file_that_grows_is_torn_or_is_put_in_the_place_of_another(tmp_path):
    path = tmp_path / "metrics.jsonl"
    scores = HeldOutScores(path)
    assert scores.read() is None

    path.write_bytes(measured(0, 0.5) + measured(2, 0.75)[:40])
    assert scores.read() == HeldOut(0.5, 0.5, 0, 0.5, 0)
    path.write_bytes(measured(0, 0.5) + measured(2, 0.75) + b"nonsense\n" + measured(4, float("nan")))
    assert scores.read() == HeldOut(0.5, 0.75, 2, 0.75, 2)
    path.write_bytes(measured(0, 0.125))
    assert scores.read() == HeldOut(0.125, 0.125, 0, 0.125, 0)
