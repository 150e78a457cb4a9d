from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_side import answer_of, needs
from ports import free_port

pytestmark = needs("verl")

KEYS: dict[str, Any] = {
    "model": {"dtype": "float32"},
    "rollout": {"temperature": 0.7, "max_model_len": 128, "max_response_length_in_one_turn": 64},
    "trainer": {
        "total_steps": 3,
        "tasks_per_step": 5,
        "optim": {"lr": 1e-3, "warmup_steps": 2, "betas": [0.8, 0.95], "weight_decay": 0.1, "max_grad_norm": 0.005},
        "loss": {"kl_coef": 0.2, "entropy_coef": 0.05, "importance_cap": 1.2},
    },
}


def test_steps_of_verls_own_worker_are_those_of_the_local_trainer(tiny_folder: Path) -> None:
    """With what the configuration says of temperature, optimiser and loss, and rows that verl fills a batch up with."""
    said = {"folder": str(tiny_folder), "keys": KEYS, "port": free_port()}
    answer = answer_of("verl", "verl_steps_side.py", said, PYTHONPATH=str(Path("tests/trainer").absolute()))
    steps = answer["steps"]
    assert len(steps) == 3
    for step in steps:
        local, verl = step["grad_norm"]
        assert verl == pytest.approx(local, rel=1e-4)
        assert local > KEYS["trainer"]["optim"]["max_grad_norm"]  # and is clipped
        assert step["distance"] < 2e-5  # of a weight, of which a step moves each by up to 1e-3
    lr = KEYS["trainer"]["optim"]["lr"]
    assert [step["lr"] for step in steps] == pytest.approx([lr / 3, 2 * lr / 3, lr])
    loaded, followed = answer["resumed"]
    assert followed == pytest.approx(loaded / 2)  # verl's own checkpoint brings the earlier rate
