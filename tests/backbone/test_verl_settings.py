from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from engine_side import answer_of, needs, python_of

from astune.backbone.cluster.job import Job, StepsToCome
from astune.config.schema import AstuneConfig
from astune.schema import Task
from astune.trainer.policy import learning_rate

pytestmark = needs("verl")
_STEPS = StepsToCome([[Task("1", "?")]], [{}])
ACTOR, MEGATRON = "actor_rollout_ref.actor", {"verl": {"model_engine": "megatron"}}
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "fsdp": ({}, False),
    "fsdp in float32": ({"model": {"dtype": "float32"}}, False),
    "fsdp on a CPU": ({}, True),
    "all terms": ({"trainer": {"loss": {"kl_coef": 0.1, "entropy_coef": 0.01}}}, False),
    "megatron": (
        MEGATRON
        | {"trainer": {"total_steps": 7, "optim": {"lr": 1e-3, "warmup_steps": 3, "lr_final_ratio": 0.1}}}
        | {"verl": {"model_engine": "megatron", "actor_rollout_ref": {"actor": {"megatron": {"param_offload": True}}}}},
        False,
    ),
    "megatron on a CPU": (MEGATRON, True),
    "megatron with adapters": (MEGATRON | {"model": {"lora": {"rank": 4}}}, False),
    "megatron in float32": (MEGATRON | {"model": {"dtype": "float32"}}, False),
    "a word for a section": ({"verl": {"trainer": 8}}, False),
    "servers without GPUs": (
        {"trainer": {"max_staleness": 1}, "verl": {"trainer": {"v1": {"trainer_mode": "separate_async"}}}},
        False,
    ),
    "servers of their own": (
        {
            "trainer": {"max_staleness": 1},
            "verl": {
                "trainer": {"v1": {"trainer_mode": "separate_async"}},
                "actor_rollout_ref": {"rollout": {"nnodes": 1, "checkpoint_engine": {"backend": "nccl"}}},
            },
        },
        False,
    ),
    "torchtitan": ({"verl": {"model_engine": "torchtitan"}}, False),
}


@pytest.fixture(scope="module")
def plans() -> dict[str, dict[str, Any]]:
    asked = [{"order": _order(keys), "on_cpu": on_cpu} for keys, on_cpu in CASES.values()]
    return dict(zip(CASES, answer_of("verl", "verl_plan_side.py", asked), strict=True))


def _order(keys: dict[str, Any], base_dir: Path | None = None) -> dict[str, Any]:
    config = AstuneConfig.model_validate(keys)
    job = Job("verl", config, base_dir, Path("/model"), _STEPS, [], Path("/run/verl"))
    return job.work_order().model_dump(mode="json")


def test_the_precision_that_is_asked_for_is_that_of_servers_trainer_and_reference(
    plans: dict[str, dict[str, Any]],
) -> None:
    wanted = {"fsdp in float32": "float32", "fsdp on a CPU": "float32", "fsdp": "bfloat16"}
    for name, dtype in wanted.items():
        said = plans[name]["said"]
        assert said["actor_rollout_ref.rollout.dtype"] == dtype
        for role in ("actor", "ref"):
            place = f"actor_rollout_ref.{role}.fsdp_config.mixed_precision"
            assert said.get(f"{place}.param_dtype") == (None if name == "fsdp" else "fp32"), place


def test_what_an_agent_imports_has_to_be_in_the_engines_environment(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("import found_nowhere\n")
    order = _order({"rollout": {"workflow": "agent.py->Agent"}}, tmp_path)
    command = [python_of("verl").absolute(), "-m", "astune.backbone.verl", "plan"]
    done = subprocess.run(command, check=False, input=json.dumps(order), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stdout == ""
    [*_, said] = done.stderr.splitlines()
    assert said.startswith(f"in the engine's environment, {Path('.venv-verl').absolute()}: ")
    assert "found_nowhere" in said
    assert "-m pip install" in said


def test_a_model_to_compare_with_is_loaded_for_a_kl_term_alone(plans: dict[str, dict[str, Any]]) -> None:
    for name, wanted in (("fsdp", False), ("all terms", True)):
        said = plans[name]["said"]
        assert said[f"{ACTOR}.use_kl_loss"] is said[f"{ACTOR}.calculate_entropy"] is wanted
        assert said[f"{ACTOR}.kl_loss_coef"] == said[f"{ACTOR}.entropy_coeff"] == 0  # not by verl, which weighs rows


def test_all_servers_are_watched_that_sample(plans: dict[str, dict[str, Any]]) -> None:
    assert plans["servers of their own"]["said"]["actor_rollout_ref.hybrid_engine"] is False
    assert plans["fsdp"]["said"]["actor_rollout_ref.hybrid_engine"] is True


def test_megatron_has_the_learning_rate_of_the_local_trainer(plans: dict[str, dict[str, Any]]) -> None:
    said = plans["megatron"]["said"]
    assert said[f"{ACTOR}.strategy"] == "megatron"
    assert said[f"{ACTOR}.megatron.param_offload"] is True
    betas = [said[f"{ACTOR}.optim.override_optimizer_config.adam_beta{number}"] for number in (1, 2)]
    assert betas == [0.9, 0.99]
    optim = AstuneConfig.model_validate(CASES["megatron"][0]).trainer.optim
    given = [_megatrons(said, f"{ACTOR}.optim.", step) for step in range(7)]
    assert given == pytest.approx([learning_rate(optim, step, 7) for step in range(1, 8)])


def _megatrons(said: dict[str, Any], optim: str, step: int) -> float:
    """As Megatron-LM's OptimizerParamScheduler has it, which is not installed here."""
    names = ("lr_warmup_init", "lr", "min_lr", "lr_warmup_steps", "lr_decay_steps")
    begin, highest, lowest, warmup, decay = (said[f"{optim}{name}"] for name in names)
    assert said[f"{optim}lr_decay_style"] == "linear"
    if warmup and step <= warmup:
        return begin + (highest - begin) * step / warmup
    if step > decay:
        return lowest
    return lowest + (highest - lowest) * (1 - (step - warmup) / (decay - warmup))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("megatron on a CPU", "it needs GPUs"),
        ("megatron with adapters", "adapters"),
        ("megatron in float32", "bfloat16"),
        ("torchtitan", "model_engine torchtitan cannot be used"),
        ("a word for a section", "trainer is a section of verl's"),
        ("servers without GPUs", "separate_async needs GPUs for its servers"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_starts(
    plans: dict[str, dict[str, Any]], name: str, why: str
) -> None:
    assert why in plans[name]["refused"]
