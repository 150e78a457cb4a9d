"""Episodes with structured answers, from the call to new weights: real sampling, real masks, books that balance."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from rollout_stage import PLEASED, Watcher, task

from astune import AstuneProxy, Task, Workflow
from astune.config.schema import AstuneConfig
from astune.engine.local.in_process import InProcessEngine
from astune.renderers import load_renderer
from astune.rollout import RolloutPool
from astune.runs.wire import snapshot, unpack
from astune.schema import Episode, Split, TrainingBatch
from astune.trainer.policy import PolicyTrainer

pytestmark = pytest.mark.slow


class Plan(BaseModel):
    steps: list[Literal["look", "go", "stop"]] = Field(min_length=1, max_length=3)
    sure: bool


class Plans(Workflow):
    """Thinks aloud, plans in a structure, and says yes or no."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        messages = list(proxy.init_messages)
        messages += [await proxy.achat(messages), {"role": "user", "content": "Your plan?"}]
        reply = await proxy.achat(messages, response_format=Plan)
        plan = Plan.model_validate_json(reply["content"])
        messages += [reply, {"role": "user", "content": f"{len(plan.steps)} steps. Sure?"}]
        last = await proxy.achat(messages, response_format={"type": "regex", "regex": "(yes|no)"})
        proxy.update_judge_input_dictionary(final_answer=last["content"], steps=plan.steps)


class OnlyPlans(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        await proxy.achat(proxy.init_messages, response_format=Plan)


def config(constrained_tokens: str) -> AstuneConfig:
    rollout = {"max_model_len": 512, "max_response_length_in_one_turn": 120, "max_attempts": 1, "num_repeat": 4}
    return AstuneConfig.model_validate(
        {
            "rollout": rollout,
            "engine": {"kv_cache_gb": 0.05, "max_batch_size": 8},
            "model": {"device": "cpu", "dtype": "float32"},
            "trainer": {"loss": {"constrained_tokens": constrained_tokens}, "tasks_per_step": 2},
        }
    )


async def play(
    folder: Path, settings: AstuneConfig, workflow: type[Workflow], split: Split = "train"
) -> tuple[TrainingBatch, Any, Watcher]:
    engine = InProcessEngine.load(
        folder, model=settings.model, engine=settings.engine, max_model_len=512, deterministic=False
    )
    watcher = Watcher()
    pool = RolloutPool(engine, load_renderer(folder), workflow, PLEASED, settings, watcher)
    before = engine.stats()
    groups = await pool.run_groups([task("1"), task("2")], step=1, split=split, num_repeat=4, temperature=1.0)
    balance = pool.balance(groups, engine.stats() - before)
    await engine.aclose()
    advantages = [[1.0, -1.0, 0.5, -0.5] for group in groups if group.dropped is None]
    return TrainingBatch(1, [group for group in groups if group.dropped is None], advantages), balance, watcher


@pytest.mark.parametrize("constrained_tokens", ["replay", "mask"])
async def test_structured_episodes_train_and_every_token_is_booked(tiny_folder: Path, constrained_tokens: str) -> None:
    settings = config(constrained_tokens)
    batch, balance, _ = await play(tiny_folder, settings, Plans)
    assert len(batch.groups) == 2
    assert balance.difference == 0
    nodes = [node for group in batch.groups for one in group.episodes for node in one.forest.nodes if node.sampled]
    under = sum(node.n_sampled for node in nodes if node.constraint is not None)
    assert sum(node.constraint is not None for node in nodes) == 2 * 8
    assert balance.masked == ({} if constrained_tokens == "replay" else {"sampled under a grammar": under})
    for group in batch.groups:
        for one in group.episodes:
            assert one.judge_inputs["final_answer"] in ("yes", "no")
            assert through_the_wire(one).timelines == one.timelines
    report = PolicyTrainer.load(tiny_folder, settings).step(batch)
    assert report.trained_tokens == balance.trained
    masked = balance.masked.total()
    assert report.metrics["masked_fraction"] == pytest.approx(masked / (balance.trained + masked))
    # The trainer finds the engine's own probabilities again: within the masks, or for the free tokens alone.
    assert report.metrics["logprob_diff_max"] < 1e-4
    assert report.metrics["importance_mean"] == pytest.approx(1, abs=1e-5)


async def test_an_agent_with_nothing_but_masked_answers_is_told_so(tiny_folder: Path) -> None:
    batch, balance, watcher = await play(tiny_folder, config("mask"), OnlyPlans)
    assert batch.groups == []
    assert balance.difference == 0
    assert "trainer.loss.constrained_tokens to replay" in (watcher.failed[0].error or "")


async def test_masking_asks_nothing_of_episodes_that_are_only_measured(tiny_folder: Path) -> None:
    batch, _, watcher = await play(tiny_folder, config("mask"), OnlyPlans, split="validation")
    assert len(batch.groups) == 2
    assert watcher.failed == []


async def test_an_agent_with_nothing_but_structured_answers_is_trained_by_replay(tiny_folder: Path) -> None:
    settings = config("replay")
    batch, balance, _ = await play(tiny_folder, settings, OnlyPlans)
    assert balance.trained == balance.sampled > 0
    assert PolicyTrainer.load(tiny_folder, settings).step(batch).metrics["logprob_diff_max"] < 1e-4


def through_the_wire(episode: Episode) -> Episode:
    import zstandard

    from astune.runs.wire import pack

    return unpack(pack(snapshot(episode), zstandard.ZstdCompressor()))
