"""One browser, one server and one trained run for all tests of the page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from astune_command import ROOT, astune
from page_process import Served, overrides
from page_stage import write_staged_run

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
TRAINING = {
    "trainer.total_steps": int(os.environ.get("VIEWER_STEPS", "2")),
    "trainer.tasks_per_step": 3,
    "rollout.num_repeat": 6,
    "trainer.test_freq": 1,
    "trainer.validation.max_tasks": 2,
    "rollout.max_response_length_in_one_turn": 24,
}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the page's tests need the Python package playwright")
    if not CHROMIUM.is_file():
        pytest.skip(f"no Chromium at {CHROMIUM}; on Debian: scripts/install_debian.sh, elsewhere set CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def record(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `launcher_record` with a run that the real small model was trained in, and a staged one."""
    folder = tmp_path_factory.mktemp("viewer")
    conf = ROOT / "tutorial" / "example_calculator" / "calculator.yaml"
    astune(folder, "--conf", str(conf), *overrides(TRAINING))
    write_staged_run(folder / "launcher_record")
    return folder / "launcher_record"


@pytest.fixture(scope="session")
def trained(record: Path) -> str:
    """The trained run's name in the viewer."""
    [run] = (record / "calculator").iterdir()
    return f"calculator/{run.name}"


@pytest.fixture(scope="session")
def staged(record: Path) -> str:
    [run] = (record / "staged").iterdir()
    return f"staged/{run.name}"


@pytest.fixture(scope="session")
def served(record: Path) -> Iterator[str]:
    """The address of a viewer of the whole record."""
    served = Served(record.parent, str(record))
    yield served.url
    served.close()


class Trouble(list[str]):
    """What a page complained of: errors in scripts, refusals by its policy, requests that went elsewhere."""


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails its test where it complained of anything."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US", color_scheme="light")
    context.set_default_timeout(15_000)
    page = context.new_page()
    trouble = Trouble()
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("console", lambda told: trouble.append(f"console: {told.text}") if told.type == "error" else None)
    yield page
    context.close()
    assert not trouble
