"""An experiment whose tasks bring their own answers: every fourth row is held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_experiment(
    conf: Path, model: Path, rows: Sequence[dict[str, Any]], workflow: str, *, steps: int, lr: float
) -> None:
    """Write `conf`, and beside it the rows and the workflow, a class `Ask`."""
    folder = conf.parent
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for n, row in enumerate(rows) if n % 4))
    (folder / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for n, row in enumerate(rows) if n % 4 == 0))
    (folder / "ask.py").write_text(workflow)
    experiment = {
        "model": {"path": str(model), "dtype": "float32", "device": "cpu"},
        "task_reader": {
            "type": "jsonl",
            "jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held_out.jsonl"}},
        },
        "rollout": {"workflow": "ask.py->Ask", "max_model_len": 256, "max_response_length_in_one_turn": 16},
        "trainer": {
            "tasks_per_step": 9,
            "total_steps": steps,
            "test_freq": steps,
            "save_freq": steps,
            "optim": {"lr": lr, "warmup_steps": 1},
            "validation": {"temperature": 0},
        },
    }
    conf.write_text(json.dumps({"astune": experiment}))
