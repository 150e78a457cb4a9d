"""The trainer's own log-probabilities come back to the messages that they belong to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from examples import some
from trainer_helpers import config, episode, group, node, own_model, random_batch

from astune.schema import TrainingBatch
from astune.trainer.microbatch import MicroBatch
from astune.trainer.own_logprobs import of_sampled
from astune.trainer.policy import PolicyTrainer


@pytest.mark.parametrize(
    ("algorithm", "updates", "tokens_per_microbatch"),
    some([("grpo", 2, 40), ("sft", 1, 40), ("grpo", 1, 40), ("grpo", 2, 4000), ("grpo", 1, 4000)], 1),
)
def test_every_trained_token_has_what_the_model_says_of_it_before_the_step(
    small_folder: Path, algorithm: str, updates: int, tokens_per_microbatch: int
) -> None:
    """Episodes that share beginnings and branch, so that micro-batches lay their tokens out in another order."""
    batch = random_batch(3)
    if algorithm == "sft":  # no engine sampled them
        for answer in (one for group in batch.groups for each in group.episodes for one in each.forest.answers()):
            answer.logprobs = [0.0] * answer.n_sampled
    updating = {"loss": {"updates_per_step": updates}, "tokens_per_microbatch": tokens_per_microbatch}
    settings = config(algorithm={"type": algorithm}, **updating)
    report = PolicyTrainer.load(small_folder, settings).step(batch)
    module = own_model(small_folder, "float32")
    compared = 0
    for members in batch.groups:
        for each in members.episodes:
            found = of_sampled(each, report.logprobs[each.episode_id])
            for sampled, prompt_ids, completion in each.forest.replay():
                ids = torch.tensor([[*prompt_ids, *completion.token_ids]])
                with torch.no_grad():
                    logprobs = module(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
                said = torch.tensor(completion.token_ids)
                expected = logprobs[len(prompt_ids) - 1 : -1].gather(1, said[:, None])[:, 0]
                ours, found = found[: sampled.n_sampled], found[sampled.n_sampled :]
                np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-4, atol=1e-4)
                compared += len(ours)
    assert compared == report.trained_tokens > 100


def test_what_later_updates_begin_with_alike_is_computed_once_for_the_old_policy(
    small_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four groups of two answers to one prompt: two groups an update, each in a micro-batch of its own; the last token
    of an answer is not read."""
    prompt = list(range(1, 30))
    groups = [
        group([episode([node(0, None, prompt), node(1, 0, [30 + 2 * number + k, 50, 51], sampled=3)]) for k in (0, 1)])
        for number in range(4)
    ]
    trainer = PolicyTrainer.load(small_folder, config(loss={"updates_per_step": 2}, tokens_per_microbatch=35))
    compute, read = trainer.model.logprobs, list[int]()

    def counted(batch: MicroBatch, temperature: float) -> torch.Tensor:
        read.append(len(batch.token_ids_T))
        return compute(batch, temperature)

    monkeypatch.setattr(trainer.model, "logprobs", counted)
    report = trainer.step(TrainingBatch(1, groups, [[1.0, -1.0]] * 4))
    assert report.metrics["computed_tokens"] == 4 * (29 + 2 * 2)
    assert read == [29 + 4 * 2]


def test_what_was_not_trained_is_unknown() -> None:
    nodes = [node(0, None, [1, 2]), node(1, 0, [3, 4], sampled=2), node(2, 0, [5, 6, 7], sampled=2, trainable=False)]
    found = of_sampled(episode(nodes), {1: np.array([-1.0, -2.0], np.float32)})
    assert found[:2].tolist() == [-1.0, -2.0]
    assert np.isnan(found[2:]).all()
    assert len(found) == 4
    assert len(of_sampled(episode([node(0, None, [1])]), {})) == 0
