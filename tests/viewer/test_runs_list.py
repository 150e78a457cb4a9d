"""The list of runs: held-out success, seed, and the settings in which runs differ."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import httpx
from viewer_stage import get, serving

from astune.config import dump, load_config
from astune.runs import RunDirectory
from astune.viewer.server import ViewerServer


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


def test_a_setting_that_a_run_does_not_have_differs_from_nothing(tmp_path):
    for settings in ({"lr": 1, "x": 1}, {"lr": 2}, {"lr": 1}):
        write(tmp_path, {}, config(**settings))
    assert sorted(listed(tmp_path), key=str) == [{"lr": "1"}, {"lr": "1"}, {"lr": "2"}]


def listed(record: Path, key: str = "settings") -> list[Any]:
    with serving(record) as client:
        return [run[key] for run in get(client, "runs")]


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


def test_a_configuration_that_cannot_be_read_has_no_settings(tmp_path):
    texts = (
        "",
        "astune: 3",
        "astune: [1]",
        "astune: {model: 3}",
        "astune: {model: [x]}",
        "a: &a [*a]",
        '{"astune": {"x": 1',
    )
    for text in texts:
        write(tmp_path, {}, text)
    with serving(tmp_path) as client:
        shown = [(run["model"], run["backbone"], run["seed"], run["settings"]) for run in get(client, "runs")]
    assert shown == [(None, None, None, {})] * len(texts)


WRITTEN = (
    "astune:\n  backbone: local\n  seed: 3\n  own: {a: [1, 2], b: 1e-6}\n  list:\n  - 1\n  - x\n",
    "astune:\n  a: &same {x: 1}\n  b: *same\n",
    "astune:\n  a: {x: 1,\n  y: 2}\n  b: 'one\n  two: three'\n",
    "astune:\n\n  a: |\n    text\n\n    of: lines\n  # a note\n  a: last\n",
    "astune: {a: 1}\nother: 2\n",
    dump(load_config(None, ["trainer.optim.lr=1e-5"])),
)


def test_a_configuration_says_the_same_read_section_by_section_and_as_a_whole(tmp_path):
    by_section = [write(tmp_path / "own", {}, text) for text in WRITTEN]
    whole = [write(tmp_path / "whole", {}, f"# with this line it is none that we wrote\n{text}") for text in WRITTEN]
    with serving(tmp_path) as client:
        told = [[settings_of(client, run, tmp_path) for run in runs] for runs in (by_section, whole)]
    assert told[0] == told[1]
    assert all(changed for changed, *_ in told[0])


def settings_of(client: httpx.Client, run: Path, record: Path) -> list[Any]:
    told = get(client, "run", run=run.relative_to(record).as_posix())
    return [told["changed"], *(told["info"][key] for key in ("model", "backbone", "seed"))]


def test_settings_are_texts_that_an_answer_can_hold(tmp_path):
    run = write(tmp_path, {}, "astune: {b: {c: [1, 2]}, d: null, e: {}, f: 数, seed: 99999999999999999999}")
    with serving(run) as client:
        told = get(client, "run", run="")
    changed = {key: value for key, value, _ in told["changed"]}
    assert (changed["b.c"], changed["d"], changed["e"], told["info"]["seed"]) == ("[1,2]", "null", "{}", None)
    assert changed["f"] == "数"


def measured(step: int, score: float, more: str = "") -> bytes:
    """A line of a measurement, as long as one likes."""
    head = b'{"step":%d,"kind":"validation","time":1.0,"elapsed_s":1.0,"metrics":' % step
    return head + b'{"reward/success_of_all":%f%s}}\n' % (score, more.encode())


def held_out(*scores: float) -> dict[str, float] | None:
    """As a run is listed with measurements after every second step; the first of the best counts."""
    if not scores:
        return None
    best = max(scores)
    steps = {"best_step": 2 * scores.index(best), "last_step": 2 * (len(scores) - 1)}
    return {"first": scores[0], "best": best, "last": scores[-1], **steps}


def test_scores_are_read_of_lines_longer_and_shorter_than_what_is_read_at_once(tmp_path):
    run = write(tmp_path, {}, config())
    more = "".join(f',"own/{at}":1.0' for at in range(20_000))  # 300 kB
    lines = [measured(2 * step, step / 8, more if step % 3 == 0 else "") for step in range(8)]
    training = measured(9, 1.0, ',"own/\\"validation\\"":1.0').replace(b'"kind":"validation"', b'"kind":"train"')
    (run / "metrics.jsonl").write_bytes(training + training.join(lines))
    assert listed(run, "held_out") == [held_out(*(step / 8 for step in range(8)))]


def test_who_listens_to_a_folder_is_greeted_without_another_look_at_it(tmp_path, monkeypatch):
    """Looks after the first one wait for the greeting: it comes in any case, unless it takes one itself."""
    write(tmp_path, {0: 0.25}, config())
    looks, greeted = list[bool](), threading.Event()
    scan = os.scandir

    def scanned(path: Any) -> Any:
        if path == tmp_path:
            looks.append(not looks or greeted.wait(30))
        return scan(path)

    async def listen() -> None:
        app: Any = ViewerServer(tmp_path, "localhost", None).config.app
        scope = {"type": "http", "method": "GET", "path": "/api/events", "query_string": b""}
        came = asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            if b'event: runs\ndata: {"total":1}' in message.get("body", b""):
                greeted.set()
                came.set()

        stream = app(scope | {"headers": [(b"host", b"localhost")]}, asyncio.Event().wait, send)
        listening = asyncio.create_task(stream)
        async with asyncio.timeout(60):
            await came.wait()
        listening.cancel()

    monkeypatch.setattr(os, "scandir", scanned)
    asyncio.run(listen())
    assert looks
    assert all(looks)


def test_scores_follow_a_file_that_grows_is_torn_or_is_put_in_the_place_of_another(tmp_path):
    run = write(tmp_path, {}, config())
    torn = measured(0, 0.5) + measured(2, 0.75)[:40]
    whole = measured(0, 0.5) + measured(2, 0.75) + b"nonsense\n" + measured(4, float("nan"))
    with serving(run) as client:
        for written, scores in ((b"", ()), (torn, (0.5,)), (whole, (0.5, 0.75)), (measured(0, 0.125), (0.125,))):
            (run / "metrics.jsonl").write_bytes(written)
            assert get(client, "runs")[0]["held_out"] == held_out(*scores)
