"""The page on Python and the notebook: every snippet and every cell runs, with less training."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from shown_files import ROOT, write_files

import astune
from astune.app.run import Run

PAGE = ROOT / "docs" / "en" / "python_api.md"
NOTEBOOK = ROOT / "tutorial" / "notebook" / "digits.ipynb"
FEWER = """
import astune.app.experiment as experiment
made = experiment.Experiment.of.__func__
few = {"trainer.total_steps": 2, "rollout.num_repeat": 2, "model.path": %r}
def with_fewer(cls, source, overrides=(), values=None, **more):
    return made(cls, source, overrides, {**few, **(values or {})}, **more)
experiment.Experiment.of = classmethod(with_fewer)
"""
"""Run before a snippet: its trainings are shorter, with a smaller model."""


@pytest.mark.slow
def test_every_snippet_of_the_page_runs(tmp_path: Path, tiny_folder: Path):
    write_files(PAGE, tmp_path)
    (tmp_path / "sitecustomize.py").write_text(FEWER % str(tiny_folder))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    printed: list[str] = []
    for name in ("small.py", "look.py"):
        command = [sys.executable, name]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout)
    assert "step 2/2" in printed[0]
    assert f"finished {tmp_path}" in printed[1]
    assert "astune.trainer.total_steps: 2 -> 7" in printed[1]


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs_within_a_running_loop(tmp_path, tiny_folder, monkeypatch, capsys):
    """As a kernel does it: cells in one namespace, called `__main__`, while an event loop runs."""
    monkeypatch.chdir(tmp_path)
    namespace = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", namespace)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]

    async def kernel() -> None:
        for cell in cells:
            exec(compile("".join(cell["source"]), "<cell>", "exec"), vars(namespace))
            if experiment := vars(namespace).get("EXPERIMENT"):
                experiment["model"] = {"path": tiny_folder}
                experiment["rollout"]["num_repeat"] = experiment["trainer"]["total_steps"] = 2

    asyncio.run(kernel())
    run = vars(namespace)["run"]
    assert isinstance(run, Run)
    assert run.status == "finished"
    assert "step 2/2" in capsys.readouterr().out
    assert {row["split"] for row in astune.Run("digits").metrics()} == {"train", "validation"}
