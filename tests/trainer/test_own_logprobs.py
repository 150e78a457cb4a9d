"""The trainer's own log-probabilities come back to the messages that they belong to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from examples import some
from trainer_helpers import config, episode, node, own_model, random_batch

from astune.trainer.own_logprobs import of_sampled
from astune.trainer.policy import PolicyTrainer


@pytest.mark.parametrize(
    ("algorithm", "updates", "tokens_per_microbatch"),
    [("grpo", 2, 40), ("sft", 1, 40), *some([("grpo", 1, 40), ("grpo", 2, 4000), ("grpo", 1, 4000)], 0)],
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
    for group in batch.groups:
        for each in group.episodes:
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


def test_what_was_not_trained_is_unknown() -> None:
    nodes = [node(0, None, [1, 2]), node(1, 0, [3, 4], sampled=2), node(2, 0, [5, 6, 7], sampled=2, trainable=False)]
    found = of_sampled(episode(nodes), {1: np.array([-1.0, -2.0], np.float32)})
    assert found[:2].tolist() == [-1.0, -2.0]
    assert np.isnan(found[2:]).all()
    assert len(found) == 4
    assert len(of_sampled(episode([node(0, None, [1])]), {})) == 0
