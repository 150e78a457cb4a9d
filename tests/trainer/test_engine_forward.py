"""With `deterministic` the trainer's log-probabilities are the engine's to the last bit, and gradients stay theirs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet
from engine_helpers import load
from test_architectures import save_random
from torch import Tensor
from trainer_helpers import config, distance, episode, group, node, policy_loss

from astune.engine import InProcessEngine
from astune.engine.local import products
from astune.schema import Episode, MessageNode, SamplingParams, TrainingBatch
from astune.trainer.gradient import accumulate_gradient
from astune.trainer.policy import PolicyTrainer
from astune.trainer.samples import WeightedTimeline, weighted


def _of(dtype: torch.dtype) -> ParameterSet:
    lacks = not products.are_available(dtype, 2)
    reason = "the engine's rows are independent by our own products alone"
    return pytest.param(str(dtype).removeprefix("torch."), marks=pytest.mark.skipif(lacks, reason=reason))


DTYPES = pytest.mark.parametrize("dtype", [_of(torch.bfloat16), _of(torch.float32)])
LORA = {"rank": 4}
MODELS = [
    pytest.param(
        "Llama",
        {"tie_word_embeddings": True, "hidden_size": 48, "head_dim": 16},
        1.0,
        {},
        id="a width that AMX does not take",
        marks=pytest.mark.slow,
    ),
    pytest.param("Qwen2", {}, 0.7, {}, id="biases", marks=pytest.mark.slow),
    pytest.param("Qwen3", {"head_dim": 32}, 1.3, {"lora": LORA}, id="norms of queries and keys, adapters"),
]


async def played(engine: InProcessEngine, number: int, temperature: float) -> Episode:
    """Three turns over a beginning that all share, and one more that branches off after the first."""
    name = f"episode-{number}"
    nodes: list[MessageNode] = []

    async def say(parent: int | None, prompt: list[int], read: list[int]) -> tuple[int, list[int]]:
        nodes.append(node(len(nodes), parent, read))
        params = SamplingParams(max_tokens=4 + number, temperature=temperature, seed=len(nodes) * 10 + number)
        answer = await engine.generate([*prompt, *read], params, session=name)
        nodes.append(
            node(
                len(nodes),
                nodes[-1].node_id,
                answer.token_ids,
                sampled=len(answer.token_ids),
                logprobs=answer.logprobs,
                weights_version=answer.weights_version,
            )
        )
        return nodes[-1].node_id, [*prompt, *read, *answer.token_ids]

    engine.open_session(name)
    first, text = await say(None, [], [9] * 70 + [number // 2 + 3] * 40)
    second, longer = await say(first, text, [20 + number, 4, 5])
    await say(second, longer, [6])
    await say(first, text, [21 + number])
    engine.close_session(name)
    return episode(nodes, reward=float(number % 2), name=name)


async def batch_of(engine: InProcessEngine, temperature: float) -> TrainingBatch:
    episodes = await asyncio.gather(*(played(engine, number, temperature) for number in range(6)))
    return TrainingBatch(1, [group(episodes)], [[(-1.0) ** number for number in range(6)]])


def timelines_of(trainer: PolicyTrainer, batch: TrainingBatch) -> list[WeightedTimeline]:
    return weighted(batch.groups, batch.advantages, trainer.algorithm.token_weights)


def differences(trainer: PolicyTrainer, batch: TrainingBatch, temperature: float) -> Tensor:
    return torch.cat(
        [
            trainer.model.logprobs(microbatch, temperature) - microbatch.inputs.engine_logprob_E
            for microbatch in trainer.packed(timelines_of(trainer, batch))
        ]
    )


@DTYPES
@pytest.mark.parametrize(("architecture", "changes", "temperature", "more"), MODELS)
async def test_trained_and_sampled_log_probabilities_are_equal(
    architecture: str, changes: dict[str, Any], temperature: float, more: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    save_random(architecture, changes, tmp_path)
    settings = config(
        dtype=dtype,
        deterministic=True,
        temperature=temperature,
        optim={"lr": 1e-2},
        tokens_per_microbatch=600,
        **more,
    )
    trainer = PolicyTrainer.load(tmp_path, settings)
    engine = load(tmp_path, dtype=dtype, deterministic=True)
    try:
        await trainer.publish(engine)
        for _ in range(3):
            batch = await batch_of(engine, temperature)
            assert not differences(trainer, batch, temperature).any()
            report = trainer.step(batch)
            assert report.metrics["logprob_diff_max"] == 0
            assert differences(trainer, batch, temperature).abs().max() > 0.01  # the weights are others now
            await trainer.publish(engine)
    finally:
        await engine.aclose()


@DTYPES
@pytest.mark.parametrize("lora", [{}, LORA])
def test_the_gradient_is_that_of_the_models_own_operations(lora: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    save_random("Qwen3", {"head_dim": 32}, tmp_path)

    def gradients(dtype: str, deterministic: bool) -> dict[str, Tensor]:
        trainer = PolicyTrainer.load(tmp_path, config(dtype=dtype, deterministic=deterministic, lora=lora))
        microbatches = trainer.packed(timelines_of(trainer, made))
        accumulate_gradient(trainer.model, microbatches, policy_loss(importance_cap=None), 1.0)
        return trainer.model.master_weights.gradients()

    made = TrainingBatch(
        1,
        [group([episode([node(0, None, [9] * 40), node(1, 0, [n + 3] * 30 + [n, 5, 6], sampled=20)]) for n in (1, 2)])],
        [[1.0, -0.5]],
    )
    exact, ours = gradients("float32", False), gradients(dtype, True)
    rounding = distance(gradients("bfloat16", False), exact) if dtype == "bfloat16" else 1e-5
    assert distance(ours, exact) < 1.5 * rounding < 0.1


@DTYPES
@pytest.mark.parametrize("lora", [{}, LORA])
def test_the_starting_weights_are_computed_by_the_same_operations(
    lora: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    """A KL term or a margin of pairs would begin at what rounding makes of 0, and pull the weights along."""
    save_random("Llama", {}, tmp_path)
    trainer = PolicyTrainer.load(
        tmp_path,
        config(dtype=dtype, deterministic=True, lora=lora, loss={"kl_coef": 0.1}, optim={"lr": 1e-2}),
    )
    batch = TrainingBatch(
        1, [group([episode([node(0, None, [9] * 9), node(1, 0, [n, 5, 6], sampled=3)]) for n in (1, 2)])], [[1.0, -1.0]]
    )
    [microbatch] = trainer.packed(timelines_of(trainer, batch))
    before = trainer.model.logprobs(microbatch, 1.0)
    for _ in range(2):
        assert torch.equal(trainer.model.reference_logprobs(microbatch, 1.0), before)
        report = trainer.step(batch)
        moved = trainer.model.logprobs(microbatch, 1.0) - before
        assert moved.abs().max() > 0.01
        if trainer.version == 1:
            assert report.metrics["kl_to_start"] == 0


@DTYPES
def test_heads_that_the_engines_kernel_does_not_take_are_computed_by_the_model(dtype: str, tmp_path: Path) -> None:
    save_random("Qwen2", {"hidden_size": 48}, tmp_path)
    trainer = PolicyTrainer.load(tmp_path, config(dtype=dtype, deterministic=True))
    assert not trainer.model.compute_as_engine()
