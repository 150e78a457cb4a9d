"""Pictures of the page for README and documentation.

`make viewer-pictures` trains the real small model for them, or takes the calculator's run in the folder RUN, and keeps
them in docs/assets. Otherwise they are of the run that the other tests look at, and thrown away.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from astune_command import ROOT, astune
from page_stage import write_staged_run
from page_words import overrides, until
from taught import write_experiment

from astune.runs import RunDirectory

pytestmark = pytest.mark.slow

ECHO = """
from astune import Workflow, WorkflowOutput


class Ask(Workflow):
    async def execute(self, task, proxy):
        said = (await proxy.achat(proxy.init_messages))["content"].strip()
        right = said == task.metadata["answer"]
        return WorkflowOutput(reward=float(right), is_success=right)
"""
SIZE = {"width": 1360, "height": 820}


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(os.environ.get("VIEWER_PICTURES", tmp_path))


def taken(page, file: Path) -> None:
    """The picture in `file`; one that shows little more than paper is none."""
    page.mouse.move(0, 0)
    page.screenshot(path=file)
    data = file.read_bytes()
    assert struct.unpack(">2I", data[16:24]) == tuple(SIZE.values())
    assert len(data) > 25_000


def write_sweep(folder: Path, model: Path) -> Path:
    """The record of a sweep of six runs in which the tests' small model learns to answer one word."""
    words = ["yes", "no"]
    rows = [
        {"main_query": f"Say {words[n // 4 % 2]}, please ({n}).", "metadata": {"answer": words[n // 4 % 2]}}
        for n in range(96)
    ]
    conf = folder / "echo.yaml"
    write_experiment(conf, model, rows, ECHO, steps=60, lr=1e-3)
    given = json.loads(conf.read_text())
    given["astune"]["trainer"] |= {"algorithm": "sft", "tasks_per_step": 12, "test_freq": 5}
    given["astune"]["task_judge"] = {"reference_field": "answer"}
    conf.write_text(json.dumps(given))
    astune(folder, "sweep", str(conf), "--over", "trainer.optim.lr=2e-3,5e-3", "--seeds", "3", timeout_s=600)
    return folder / "launcher_record" / "echo-sweep"


@pytest.fixture
def shown(request, serve, folder, tmp_path) -> Iterator[tuple[str, Path, str]]:
    """The address of a viewer, the record that it shows, and the name of a trained run in it."""
    if "VIEWER_PICTURES" not in os.environ:
        yield tuple(map(request.getfixturevalue, ("served", "record", "real")))
        return
    record = tmp_path / "launcher_record"
    if run := os.environ.get("VIEWER_RUN"):
        shutil.copytree(run, record / "calculator" / Path(run).resolve().name)
    else:
        conf = ROOT / "tutorial" / "example_calculator" / "calculator.yaml"
        steps = overrides({"trainer.total_steps": 10, "trainer.test_freq": 2})
        astune(tmp_path, "--conf", str(conf), *steps, timeout_s=1500)
    rows = request.getfixturevalue("gsm8k")
    files = {f"task_reader.jsonl.{split}.file_path": rows / "train.jsonl" for split in ("training", "validation")}
    for example, settings in {
        "planner_solver": {},
        "math_agent": {"task_reader.type": "jsonl", "task_reader.jsonl.query_field": "question", **files},
    }.items():
        conf = ROOT / "tutorial" / f"example_{example}" / f"{example}.yaml"
        astune(tmp_path, "--conf", str(conf), "--backbone", "debug", *overrides(settings), timeout_s=300)
    [run] = (record / "calculator").iterdir()
    write_staged_run(record)
    yield serve(record), record, f"calculator/{run.name}"


@pytest.fixture
def best(shown) -> str:
    """The last training episode among those that came out best."""
    _, record, run = shown
    with RunDirectory.look_at(record / run).episodes() as reader:
        rows = [row for row in reader.list(split="train") if row.advantages and not row.not_trained]
    return quote(max(rows, key=lambda row: (row.reward, row.n_turns, row.seq)).episode_id)


def an_episode(record: Path, experiment: str) -> str:
    """The address of the longest episode of a real run of an example; of a staged one where no pictures are kept."""
    if not (record / experiment).exists():
        [staged] = (record / "staged").iterdir()
        return f"#run=staged/{staged.name}&id=train-1-forked-0-1"
    [run] = (record / experiment).iterdir()
    with RunDirectory.look_at(run).episodes() as reader:
        longest = max(reader.list(), key=lambda row: row.n_turns)
    return f"#run={experiment}/{run.name}&id={quote(longest.episode_id)}"


def test_the_main_pages_have_their_pictures(page, shown, best, folder):
    served, record, name = shown
    page.set_viewport_size(SIZE)
    run = f"{served}#run={name}&sort=reward&order=desc&id={best}"

    page.goto(f"{served}#run={name}")
    page.locator('[data-chart="success"] canvas').wait_for()
    until(page, "[...document.querySelectorAll('canvas')].every(canvas => canvas.height !== 150)")
    taken(page, folder / "viewer-overview.png")

    page.goto(run)
    page.locator(".message").first.wait_for()
    taken(page, folder / "viewer-chat.png")

    page.goto(f"{run}&face=tokens")
    page.locator(".tokens .t").first.wait_for()
    page.locator(".tokens").evaluate("list => list.scrollTo(0, list.scrollHeight)")
    page.locator(".tokens .t.loss").nth(2).click()
    page.locator(".pinned-card").wait_for()
    taken(page, folder / "viewer-tokens.png")

    page.goto(f"{run}&face=compare")
    page.locator(".side .t").first.wait_for()
    taken(page, folder / "viewer-compare.png")

    page.goto(f"{served}{an_episode(record, 'math_agent')}&face=branches")
    page.locator(".tree-row").last.scroll_into_view_if_needed()
    taken(page, folder / "viewer-branches.png")

    page.goto(f"{served}{an_episode(record, 'planner_solver')}&face=lanes")
    page.locator(".saying").first.wait_for()
    taken(page, folder / "viewer-lanes.png")

    page.goto(f"{served}#run={name}&view=episodes")
    page.locator("[data-episode]").first.wait_for()
    taken(page, folder / "viewer-episodes.png")

    page.goto(f"{served}#run={name}&view=episodes&list=tasks")
    page.locator("[data-task]").first.wait_for()
    taken(page, folder / "viewer-tasks.png")

    page.emulate_media(color_scheme="dark")
    page.goto(f"{served}#run={name}&view=dashboard")
    page.locator("canvas").first.wait_for()
    until(page, "[...document.querySelectorAll('canvas')].every(canvas => canvas.height !== 150)")  # that of a new one
    taken(page, folder / "viewer-dashboard.png")


def test_several_runs_and_the_page_to_share_have_their_pictures(page, serve, shown, folder, tmp_path, request):
    if "VIEWER_PICTURES" not in os.environ:
        pytest.skip("the runs are trained for the pictures alone: make viewer-pictures")
    _, record, name = shown
    page.set_viewport_size(SIZE)
    served = serve(write_sweep(tmp_path, request.getfixturevalue("tiny_folder")))
    page.goto(f"{served}#view=runs")
    boxes = page.locator(".run-table tbody input[type=checkbox]")
    boxes.first.wait_for()
    for box in boxes.all():
        box.check()
    taken(page, folder / "viewer-runs.png")

    page.get_by_role("button", name="Curves of 6 runs").click()
    page.get_by_label("Mean over runs by").select_option("*")
    page.locator("[data-chart=success] canvas").wait_for()
    until(page, "[...document.querySelectorAll('canvas')].every(canvas => canvas.height !== 150)")
    taken(page, folder / "viewer-together.png")

    astune(tmp_path, "report", str(record / name), "--html")
    page.goto((record / name / "plots" / "report.html").as_uri())
    taken(page, folder / "viewer-report.png")
