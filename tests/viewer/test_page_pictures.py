"""Pictures of the page for README and documentation.

`make viewer-pictures` trains the real small model for them, or takes the calculator's run in the folder RUN, and keeps
them in docs/assets. Otherwise they are of the run that the other tests look at, and thrown away.
"""

from __future__ import annotations

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

from astune.runs import RunDirectory

pytestmark = pytest.mark.slow

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


def test_the_main_pages_have_their_pictures(page, shown, best, folder):
    served, record, name = shown
    [staged] = (record / "staged").iterdir()
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

    page.goto(f"{served}#run=staged/{staged.name}&id=train-1-forked-0-1&face=branches")
    page.locator(".tree-row").first.wait_for()
    taken(page, folder / "viewer-branches.png")

    page.goto(f"{served}#run=staged/{staged.name}&id=train-1-forked-0-1&face=lanes")
    page.locator(".saying").first.wait_for()
    taken(page, folder / "viewer-lanes.png")

    page.goto(f"{served}#run={name}&view=episodes&list=tasks")
    page.locator("[data-task]").first.wait_for()
    taken(page, folder / "viewer-tasks.png")

    page.emulate_media(color_scheme="dark")
    page.goto(f"{served}#run={name}&view=dashboard")
    page.locator("canvas").first.wait_for()
    until(page, "[...document.querySelectorAll('canvas')].every(canvas => canvas.height !== 150)")  # that of a new one
    taken(page, folder / "viewer-dashboard.png")
