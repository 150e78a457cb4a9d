"""What a process keeps from one training step to the next."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from astune.config.schema import OptimConfig
from astune.engine.local.allocator import set_up_cpu_memory
from astune.trainer.master_weights import MasterWeights

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
def test_the_peak_of_a_hundred_steps_is_that_of_twenty(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("peak_memory.py")), str(tmp_path)]
    after = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    first, last = map(int, after)
    assert 100 < first <= last < 1.05 * first


def trained_once(linear: nn.Linear, masters: MasterWeights) -> None:
    linear(torch.ones(1, linear.in_features)).sum().backward()
    masters.step(OptimConfig(), 1e-3)


def test_gradients_go_back_at_once() -> None:
    set_up_cpu_memory()
    linear = nn.Linear(2048, 8192, bias=False)  # 64 MiB
    masters = MasterWeights(linear, torch.float32)
    linear(torch.ones(1, 2048)).sum().backward()
    before = resident_mib()
    masters.clear_gradients()
    assert before - resident_mib() > 60


def test_moments_that_were_loaded_are_those_that_were_saved() -> None:
    linear, other = nn.Linear(256, 256), nn.Linear(256, 256)
    masters, resumed = MasterWeights(linear, torch.float32), MasterWeights(other, torch.float32)
    trained_once(linear, masters)
    resumed.load_state_dict(copy.deepcopy(masters.state_dict(OptimConfig())), OptimConfig())
    first = linear.weight.detach().clone()
    assert torch.equal(other.weight, first)
    trained_once(linear, masters)
    trained_once(other, resumed)
    assert torch.equal(other.weight, linear.weight)
    assert not torch.equal(other.weight, first)


@pytest.mark.parametrize("exact", [True, False], ids=["as they are", "rounded to bfloat16"])
def test_moments_are_loaded_into_those_that_are_there(exact: bool) -> None:
    linear, other = nn.Linear(256, 256), nn.Linear(256, 256)
    masters, resumed = MasterWeights(linear, torch.float32), MasterWeights(other, torch.float32)
    trained_once(linear, masters)
    there = moments(resumed)
    resumed.load_state_dict(copy.deepcopy(masters.state_dict(OptimConfig(), exact=exact)), OptimConfig())
    for before, after, saved in zip(there, moments(resumed), moments(masters), strict=True):
        assert after.data_ptr() == before.data_ptr(), "a second copy is memory that the run itself never takes"
        assert torch.equal(after, saved if exact else saved.bfloat16().float())
        assert saved.any()


def moments(masters: MasterWeights) -> list[torch.Tensor]:
    each = masters.state_dict(OptimConfig())["optimizer"]["state"].values()
    return [state[name] for state in each for name in ("exp_avg", "exp_avg_sq")]
