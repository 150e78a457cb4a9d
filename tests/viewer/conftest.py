"""A run that a real short training wrote, and the viewer on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from viewer_stage import ODD, TALKERS, serving

from astune.runs import resolve_run

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
