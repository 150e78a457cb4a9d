"""A run that a real short training wrote, the viewer on it, and a browser that shows the viewer's page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from page_stage import write_staged_run
from viewer_stage import ODD, TALKERS, serving

from astune.runs import resolve_run
from benchmarks.chromium import CHROMIUM, FLAGS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def trained(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a real training: two steps of a tiny model with a real tokenizer, measured before and after."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "agent.py").write_text(TALKERS)
    for split, n in (("train", 12), ("held_out", 2)):
        lines = [json.dumps({"main_query": f"{ODD} ({split} {number})"}) for number in range(n)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    experiment = {
        "model": {"path": str(tiny_folder)},
        "task_reader": {
            "jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held_out.jsonl"}}
        },
        "rollout": {
            "workflow": "agent.py->Talkers",
            "max_model_len": 512,
            "max_response_length_in_one_turn": 12,
            "num_repeat": 4,
        },
        "trainer": {"tasks_per_step": 2, "total_steps": 2, "test_freq": 2},
    }
    (folder / "talkers.yaml").write_text(yaml.safe_dump({"astune": experiment}))
    done = subprocess.run(
        [sys.executable, "-m", "astune", "--conf", "talkers.yaml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return resolve_run(folder / "launcher_record")


@pytest.fixture(scope="session")
def viewer(trained: Path) -> Iterator[httpx.Client]:
    """The viewer on the record of that training."""
    with serving(trained.parent.parent) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; a module has its own, for while Playwright holds one, no event loop can run in this thread."""
    if not CHROMIUM.is_file():
        pytest.skip(
            f"THE PAGE IS NOT TESTED: no Chromium at {CHROMIUM}; on Debian: scripts/install_debian.sh, "
            "elsewhere set CHROMIUM"
        )
    if os.environ.get("CI") and find_spec("playwright") is None:
        pytest.fail("the page's tests need the Python package playwright, and this machine has Chromium for them")
    sync_api = pytest.importorskip("playwright.sync_api", reason="the page's tests need the Python package playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def record(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of two runs: what the real training wrote, and a staged one."""
    folder = tmp_path_factory.mktemp("page") / "launcher_record"
    shutil.copytree(trained.parent.parent, folder)
    write_staged_run(folder)
    return folder


@pytest.fixture(scope="session")
def real(record: Path) -> str:
    """The trained run's name in the viewer."""
    [run] = (record / "talkers").iterdir()
    return f"talkers/{run.name}"


@pytest.fixture(scope="session")
def staged(record: Path) -> str:
    [run] = (record / "staged").iterdir()
    return f"staged/{run.name}"


@pytest.fixture(scope="session")
def served(record: Path) -> Iterator[str]:
    """The address of a viewer of the whole record."""
    with serving(record) as client:
        yield f"{str(client.base_url).rstrip('/')}/"


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts a viewer of a folder and returns its address; the server outlives the page, which may still ask it."""
    with ExitStack() as viewers:
        yield lambda folder, **more: f"{str(viewers.enter_context(serving(folder, **more)).base_url).rstrip('/')}/"


@pytest.fixture
def page(browser: Any, serve: Callable[..., str]) -> Iterator[Any]:
    """A page that fails its test where it complained of anything: errors in scripts, refusals by its policy."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US", color_scheme="light")
    context.set_default_timeout(30_000)
    page = context.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("console", lambda told: trouble.append(f"console: {told.text}") if told.type == "error" else None)
    yield page
    context.close()
    assert not trouble
