"""The loss of each algorithm that TRL has against TRL's own, token by token in float64."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_helpers import episode, group, node, policy_loss

from astune.algorithm import CISPO, DAPO, GRPO, GSPO, Algorithm, DrGRPO
from astune.trainer.loss import LossInputs
from astune.trainer.samples import weighted

PYTHON = Path(".venv-trl/bin/python")
SIDE = Path(__file__).parent / "trl_side.py"
pytestmark = pytest.mark.skipif(not PYTHON.is_file(), reason="needs TRL's environment: scripts/make_peer_env.sh trl")
LONGEST = 8
CASES: dict[str, tuple[Algorithm, dict[str, Any], float]] = {
    "GRPO": (GRPO(), {"loss_type": "grpo", "level": "token", "low": 0.2, "high": 0.28}, 0.5),
    "Dr. GRPO": (DrGRPO(), {"loss_type": "dr_grpo", "level": "token", "low": 0.2, "high": 0.2}, 0.5),
    "GSPO": (GSPO(), {"loss_type": "grpo", "level": "sequence", "low": 3e-4, "high": 4e-4}, 1.5e-3),
    "CISPO": (CISPO(), {"loss_type": "cispo", "level": "token", "low": 0.2, "high": 5.0}, 2.5),
    "DAPO": (DAPO(), {"loss_type": "dapo", "level": "token", "low": 0.2, "high": 0.28}, 0.5),
}


def answers(spread: float) -> dict[str, list[Any]]:
    """Eight answers, padded: what the policies say of them, and their advantages."""
    rng = random.Random(5)
    case: dict[str, list[Any]] = {"logp": [], "old": [], "mask": [], "advantages": []}
    for _ in range(8):
        n = rng.randint(1, LONGEST)
        logp = [rng.uniform(-4, -0.1) for _ in range(n)]
        rest = [0.0] * (LONGEST - n)
        case["logp"].append(logp + rest)
        case["old"].append([value + rng.uniform(-spread, spread) for value in logp] + rest)
        case["mask"].append([1.0] * n + rest)
        case["advantages"].append(rng.uniform(-2, 2))
    return case


def test_loss_and_gradient_are_those_of_trl() -> None:
    cases = [settings | {"longest": LONGEST} | answers(spread) for _, settings, spread in CASES.values()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, SIDE], check=False, input=json.dumps(cases), capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for (name, (algorithm, _, _)), case, theirs in zip(
        CASES.items(), cases, json.loads(done.stdout.splitlines()[-1]), strict=True
    ):
        lengths = [int(sum(row)) for row in case["mask"]]
        episodes = [episode([node(0, None, [1]), node(1, 0, [2] * n, sampled=n)]) for n in lengths]
        timelines = weighted([group(episodes)], [case["advantages"]], algorithm.token_weights, constant=LONGEST)
        mask = torch.tensor(case["mask"]).bool()
        logp, old = (torch.tensor(case[key], dtype=torch.float64) for key in ("logp", "old"))
        logp.requires_grad_()
        weight_E = torch.tensor([t.token_weight for t in timelines for _ in t.positions], dtype=torch.float64)
        advantage_E = torch.tensor([a for t in timelines for a in t.advantages], dtype=torch.float64)
        sequence_E = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        inputs = LossInputs(advantage_E, weight_E, old[mask], torch.zeros_like(sequence_E), sequence_E, old[mask])
        logprob_E = logp[mask]
        inputs = inputs.with_sequence_ratios(logprob_E)
        loss, _ = policy_loss(algorithm)(logprob_E, torch.zeros_like(logprob_E), inputs)
        loss.backward()
        assert logp.grad is not None
        assert float(loss.detach()) == pytest.approx(theirs["loss"], rel=1e-12), name
        torch.testing.assert_close(logp.grad, torch.tensor(theirs["gradient"], dtype=torch.float64), rtol=1e-10, atol=0)
