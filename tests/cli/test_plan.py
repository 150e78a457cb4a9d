"""What a backbone says of a run for `--dry-run`: what is particular to it, and nothing of what it has not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from astune.algorithm import GRPO
from astune.backbone.base import find_backbone
from astune.backbone.memory import GIB, Estimate
from astune.backbone.parts import UserParts
from astune.config import load_config
from astune.schema import Task
from astune.workflow import Workflow

PARTS = UserParts([Task("1", "What is 1 + 1?")], [Task("2", "What is 2 + 2?")], Workflow, None, GRPO())
FULLY_ASYNC = ("trinity.synchronizer.sync_style=fully_async", "trainer.max_staleness=1")


def planned(
    backbone: str, *overrides: str, memory: Sequence[Estimate] = (), starts_ray: bool = False
) -> dict[str, str]:
    config = load_config(None, [f"backbone={backbone}", *overrides])
    rows = find_backbone(backbone).plan(config, PARTS, run_path=None, memory=memory, starts_ray=starts_ray)
    return dict(rows)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ((), None),
        (("trainer.loss.kl_coef=0.1",), "with KL divergence from the weights at the start x 0.1"),
        (
            ("trainer.loss.kl_coef=0.1", "trainer.loss.entropy_coef=0.01"),
            "with KL divergence from the weights at the start x 0.1, entropy x 0.01",
        ),
    ],
)
def test_terms_of_the_loss_are_named(overrides: tuple[str, ...], says: str | None) -> None:
    assert planned("local", *overrides).get("loss") == says


@pytest.mark.parametrize(("steps", "says"), [(3, "at the end, in"), (50, "every 20 steps and at the end, in")])
def test_the_last_step_is_said_to_be_saved(steps: int, says: str) -> None:
    assert planned("local", f"trainer.total_steps={steps}", "trainer.save_freq=20")["saved"].startswith(says)


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_an_engine_runs_ahead_and_on_a_cluster(backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ahead" not in planned(backbone)
    assert planned(backbone)["cluster"] == "a Ray of its own, on this machine"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    lines = planned(backbone, "trainer.max_staleness=2")
    assert lines["ahead"] == "episodes are run up to 2 steps ahead of the weights"
    assert lines["cluster"] == "Ray at 10.0.0.1:6379"
    assert lines["held out"].startswith("1 task x")


def test_a_ray_that_is_started_beside_the_run_is_named() -> None:
    assert planned("verl", starts_ray=True)["cluster"] == "the Ray head of --with-ray"


def test_memory_is_said_to_be_an_estimate() -> None:
    memory = [Estimate("on the GPU", {"weights": 3 * GIB, "activations": GIB, "libraries": 0.0})]
    assert (
        planned("local", memory=memory)["memory"]
        == "about 4.0 GiB on the GPU (weights 3.0, activations 1.0); estimated, not measured"
    )


def test_in_one_process_sampling_and_training_take_turns() -> None:
    assert not planned("local", "trainer.max_staleness=2").keys() & {"ahead", "cluster"}


def test_a_trainer_that_does_not_pause_measures_nothing() -> None:
    assert planned("trinity", *FULLY_ASYNC)["held out"].startswith("nothing is measured")
    assert planned("verl", *FULLY_ASYNC)["held out"].startswith("1 task x")
