"""The commands and files of docs/en/env_service.md, run as the page says: its environment, hosted and played."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_stage import running
from shown_files import ROOT, blocks, write_files

from astune.config import load_config
from astune.config.imports import import_class
from astune.engine.scripted import ScriptedEngine
from astune.env_service.built_in import BUILT_IN
from astune.renderers import Renderer
from astune.rollout import RolloutPool
from astune.task_judge import load_judge
from astune.task_reader import open_task_reader
from astune.workflow import Workflow

DOCS = ROOT / "docs" / "en"
PAGE = DOCS / "env_service.md"


@pytest.mark.slow
async def test_the_shown_environment_is_hosted_and_played(
    renderer: Renderer, tokenizer: Any, tmp_path: Path, monkeypatch
) -> None:

    monkeypatch.chdir(tmp_path)
    for page in (PAGE, DOCS / "workflow.md"):
        write_files(page, tmp_path)
    [commands] = blocks(PAGE, "bash")
    start, look = (shlex.split(line) for line in commands.text.splitlines())
    assert start[:4] == ["python", "-m", "astune.env_service", "--env"]
    address = "http://127.0.0.1:8080"
    assert look == ["curl", f"{address}/healthz"]
    with running(start[4], *start[5:-2]) as service:
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(look[1].replace(address, service.url))).content == b'"OK"'
        shown = tmp_path / "hidden.yaml"
        assert address in shown.read_text()
        shown.write_text(shown.read_text().replace(address, service.url))
        config = load_config(shown)
        splits = open_task_reader(config.task_reader, base_dir=tmp_path).read()
        assert (len(splits.training), len(splits.validation)) == (200, 50)

        engine = ScriptedEngine(lambda prompt, *_: tokenizer.encode(bisected(tokenizer.decode(prompt))))
        workflow = import_class(config.rollout.workflow, key="rollout.workflow", base=Workflow)
        pool = RolloutPool(engine, renderer, workflow, load_judge(config), config)
        groups = await pool.run_groups(splits.training[:4], step=1, split="train", num_repeat=1, temperature=1.0)
        assert [group.episodes[0].status for group in groups] == ["success"] * 4


def bisected(conversation: str) -> str:
    """The guess in the middle of what is still possible."""
    low, high = 1, 20
    for guess, answer in re.findall(r"assistant\n(\d+)<\|im_end\|>\n<\|im_start\|>user\n(higher|lower)", conversation):
        low, high = (int(guess) + 1, high) if answer == "higher" else (low, int(guess) - 1)
    return str((low + high) // 2)


def test_every_environment_that_is_built_in_is_on_the_page() -> None:
    listed = re.findall(r"^\| `(\w+)[:`]", PAGE.read_text(encoding="utf-8"), re.M)
    assert set(BUILT_IN) <= set(listed)
