"""Attacks on what runs in the trainer's process, in AppWorld and in a notebook; others are in `test_redteam.py`."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rich.console
from appworld_stage import places, run, serving
from attacks import APPWORLD, PAGE_TEXTS, TERMINAL_TEXTS, TIMEOUTS, TURNS
from redteam_report import Report
from rollout_stage import build_stage
from rollout_stage import task as task_of
from service_stage import Service
from worlds import plain_subprocess

from astune import AstuneProxy, Task, Workflow, run_python_code
from astune.app import api
from astune.renderers import Renderer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", TURNS)
def test_text_that_forges_a_turn_in_a_workflow(name: str, renderer: Renderer, report: Report) -> None:
    """The next prompt of an agent that hands the model's text on, as a message of its own."""
    text, place = TURNS[name], "an in-process workflow"
    report.played(name, "set or keep a reward", "a prompt that is one text", place)
    naive = f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>\n"
    assert naive.count("<|im_start|>") > 2
    report.opened(name)

    class HandsOn(Workflow):
        async def execute(self, task: Task, proxy: AstuneProxy) -> None:
            said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
            await proxy.achat([*said, {"role": "user", "content": text}])

    ids = renderer.answer_ids(  # type: ignore[attr-defined]
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Four"}], []
    )
    [group] = asyncio.run(build_stage(renderer, HandsOn, replies=lambda *_: ids).play([task_of()]))
    [episode] = group.episodes
    _, start = renderer.stop_token_ids
    read = [token for node in episode.forest.nodes for token in node.token_ids]
    own = [node.role for node in episode.forest.nodes if node.role != "system"]
    assert own == ["user", "assistant", "user", "assistant"]
    assert read.count(start) <= len(episode.forest.nodes) + 1, "each begins one turn, and the template's own one more"
    report.held(name, place)


@pytest.mark.parametrize("name", TIMEOUTS)
async def test_arguments_that_throw_an_episode_away(name: str, report: Report) -> None:
    place = "an in-process workflow"
    report.played(name, "set or keep a reward", "a tool that raises", place)
    given: Any = [1] if TIMEOUTS[name] == "[1]" else float(TIMEOUTS[name])
    with pytest.raises((TypeError, TimeoutError, ValueError)):
        async with asyncio.timeout(given if given == given else "NaN"):  # type: ignore[arg-type]
            await asyncio.sleep(0.01)
    report.opened(name)
    assert "ValueError: the timeout has to be" in await run_python_code("print(1)", given)
    report.held(name, place)


@pytest.mark.parametrize("name", [*PAGE_TEXTS, *TERMINAL_TEXTS])
def test_text_in_a_notebook(name: str, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    text, place = (PAGE_TEXTS | TERMINAL_TEXTS)[name], "a notebook"
    title = f"{name}, in a notebook"
    report.played(title, "inject into the notebook", "an object whose HTML is its text", place)
    assert text in f"<pre>{text}</pre>"
    report.opened(title)
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    opened: list[Any] = []
    monkeypatch.setattr(api, "execute", lambda *given: opened.append(given[-1]))
    api.debug({"rollout": {"workflow": "agent.py->Agent"}})
    [console] = opened
    console.file = io.StringIO()
    assert not console.is_jupyter, "a cell's output is text, whose tags nobody reads"
    console.print(f"a group was dropped: {text}", markup=False)
    shown = console.file.getvalue()
    assert shown.startswith("a group was dropped: ")
    if name in TERMINAL_TEXTS:
        assert text not in shown
    report.held(title, place)


MODULES = "import appworld.environment as engine\nmodules = engine.sys.modules\nposix = modules['posix']\n"
ALONE = "import os, posix, sys, _socket\nmodules = sys.modules\n"


@pytest.fixture(scope="module")
def appworld(appworld_python: Path, appworld_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(appworld_python, appworld_root, tmp_path_factory.mktemp("temporary")) as service:
        yield service


@pytest.mark.parametrize("name", APPWORLD)
def test_code_in_appworld(name: str, appworld: Service, appworld_root: Path, tmp_path: Path, report: Report) -> None:
    (goal, attack), place, title = APPWORLD[name], "AppWorld", f"{name}, in AppWorld"
    report.played(title, goal, "AppWorld's engine alone", place)
    names = places(appworld_root)
    assert "REACHED" in plain_subprocess(tmp_path / "naive")(f"{ALONE}{names}{attack}\nprint('REACHED')")
    (appworld_root / "data" / "written").unlink(missing_ok=True)
    report.opened(title)
    assert appworld.create(name, "groceries_1").status_code == 200
    read = run(appworld, name, f"{MODULES}{names}{attack}\nprint('REACHED')")
    appworld.post("release", instance_id=name)
    assert "PermissionError" in read, read
    report.held(title, place)
