"""`make e2e-trinity`: the calculator is trained on a CPU by real Trinity-RFT: FSDP2, vLLM, weights by checkpoints.

It gets better; the models' probabilities stay those of the trainer; weights that do not arrive are found out, in both
of the ways there are; agents that fail, and groups that cannot be completed, neither stop it nor lose an episode.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_runs import assert_learnt, begin, kill_while_training, metrics_of, python_of, run_of

from astune.runs import balance_of

UNTRUE = str(Path(__file__).parent / "untrue_trinity")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not python_of("trinity").exists(), reason="Trinity is not in .venv-trinity: make env-trinity"),
]
UNEVEN = """
import random
from zlib import crc32

from tutorial.example_calculator.calculator import ExampleCalculatorLearn


class Uneven(ExampleCalculatorLearn):
    async def agentscope_execute(self, init_messages, astune_proxy, config):
        asked = init_messages[-1]["content"].encode()
        if crc32(asked) % 3 == 0 or random.random() < 0.1:
            raise RuntimeError("this agent fails now and then, and always with some tasks")
        return await super().agentscope_execute(init_messages, astune_proxy, config)
"""


def test_the_calculator_gets_better_with_trinity(tmp_path: Path) -> None:
    out, _ = begin("trinity", tmp_path).communicate(timeout=2400)
    assert_learnt(run_of(tmp_path), out)


def test_agents_that_fail_stop_nothing_and_lose_nothing(tmp_path: Path) -> None:
    """Some episodes raise, and are run again; the groups of some tasks can never be completed."""
    (tmp_path / "uneven.py").write_text(UNEVEN)
    steps = 3
    settings = [f"rollout.agentscope_learn_protocol={tmp_path}/uneven.py->Uneven", f"trainer.total_steps={steps}"]
    words = [word for setting in settings for word in ("--set", setting)]
    out, _ = begin("trinity", tmp_path, *words).communicate(timeout=1200)
    run = run_of(tmp_path)
    assert run.info().status == "finished", out
    lines = metrics_of(run)
    assert len(lines) == steps
    assert sum(line["episodes/failed_attempts"] for line in lines) > 0
    assert sum(line["groups/dropped"] for line in lines) > 0
    with run.episodes() as reader:
        recorded = reader.list(split="train")
    finished = [one for one in recorded if one.status != "error"]
    assert len(finished) == sum(line["episodes/finished"] for line in lines)
    assert len({one.n_turns for one in finished}) > 1
    assert all(one.not_trained or one.advantages for one in finished)
    for line in lines:
        assert balance_of(line).difference == 0


@pytest.mark.parametrize(
    ("fake", "found"),
    [("changed", "did not sample with the weights that are trained"), ("same", "says of a text what it said before")],
)
def test_weights_that_do_not_arrive_are_found_out(tmp_path: Path, fake: str, found: str) -> None:
    process = begin("trinity", tmp_path, TRINITY_PLUGIN_DIRS=UNTRUE, ASTUNE_TEST_FAKE=fake)
    out, _ = process.communicate(timeout=2400)
    assert process.returncode == 1, out
    assert found in out
    assert run_of(tmp_path).info().status == "failed"


def test_a_worker_that_is_killed_ends_the_run_within_a_minute(tmp_path: Path) -> None:
    process = begin("trinity", tmp_path)
    out, seconds = kill_while_training(process, tmp_path)
    assert seconds < 60, out
    assert process.returncode == 1, out
    assert "died" in out
