"""Each algorithm against its published objective, written naively on a padded batch and differentiated by autograd."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from examples import some
from torch import Tensor
from trainer_helpers import VOCABULARY, distance, episode, group, node, own_model, policy_loss

from astune.algorithm import CISPO, DAPO, GRPO, GSPO, RLOO, Algorithm, DrGRPO, ReinforcePlusPlus, advantages_of
from astune.config.schema import ModelConfig
from astune.schema import EpisodeGroup
from astune.trainer import head
from astune.trainer.gradient import accumulate_gradient
from astune.trainer.microbatch import Layout, pack, split
from astune.trainer.policy_model import PolicyModel
from astune.trainer.samples import weighted

CPU = torch.device("cpu")
LONGEST = 8
"""What `max_response_tokens` is here."""


@dataclass(frozen=True)
class Padded:
    """A batch of B tasks with K answers: [B, K] and [B, K, T]."""

    reward: Tensor
    logp: Tensor
    old: Tensor
    mask: Tensor

    @property
    def ratio(self) -> Tensor:
        return (self.logp - self.old).exp()

    def standardised(self) -> Tensor:
        centred = self.reward - self.reward.mean(1, keepdim=True)
        return (centred / self.reward.std(1, correction=0, keepdim=True))[..., None]

    def clipped(self, ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
        return torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)

    def mean_of_sequences(self, token: Tensor) -> Tensor:
        return ((token * self.mask).sum(-1) / self.mask.sum(-1)).mean()

    def mean_of_tokens(self, token: Tensor) -> Tensor:
        return (token * self.mask).sum() / self.mask.sum()


def grpo(b: Padded) -> Tensor:
    return b.mean_of_sequences(b.clipped(b.ratio, b.standardised(), 0.2, 0.28))


def dr_grpo(b: Padded) -> Tensor:
    advantage = (b.reward - b.reward.mean(1, keepdim=True))[..., None]
    return ((b.clipped(b.ratio, advantage, 0.2, 0.2) * b.mask).sum(-1) / LONGEST).mean()


def rloo(b: Padded) -> Tensor:
    n = b.reward.shape[1]
    others = (b.reward.sum(1, keepdim=True) - b.reward) / (n - 1)
    token = b.clipped(b.ratio, (b.reward - others)[..., None], 0.2, 0.2)
    return (token * b.mask).sum(-1).mean() / LONGEST


def reinforce_plus_plus(b: Padded) -> Tensor:
    advantage = (b.reward - b.reward.mean()) / b.reward.std(correction=0)
    return b.mean_of_sequences(b.clipped(b.ratio, advantage[..., None], 0.2, 0.2))


def reinforce_plus_plus_by_group(b: Padded) -> Tensor:
    centred = b.reward - b.reward.mean(1, keepdim=True)
    return b.mean_of_sequences(b.clipped(b.ratio, (centred / centred.std(correction=0))[..., None], 0.2, 0.2))


def gspo(b: Padded) -> Tensor:
    sequence = (((b.logp - b.old) * b.mask).sum(-1) / b.mask.sum(-1)).exp()
    return b.clipped(sequence, b.standardised()[..., 0], 3e-4, 4e-4).mean()


def cispo(b: Padded) -> Tensor:
    return b.mean_of_tokens(b.ratio.clamp(max=5.0).detach() * b.standardised() * b.logp)


def dapo(b: Padded) -> Tensor:
    over = ((b.mask.sum(-1) - 0.8 * LONGEST) / (0.2 * LONGEST)).clamp(0, 1)
    shaped = replace(b, reward=b.reward - over)
    return b.mean_of_tokens(b.clipped(b.ratio, shaped.standardised(), 0.2, 0.28))


PUBLISHED: dict[str, tuple[Algorithm, Callable[[Padded], Tensor], float]] = {
    "GRPO": (GRPO(), grpo, 0.5),
    "Dr. GRPO": (DrGRPO(), dr_grpo, 0.5),
    "RLOO": (RLOO(), rloo, 0.5),
    "REINFORCE++": (ReinforcePlusPlus(), reinforce_plus_plus, 0.5),
    "REINFORCE++ by group": (ReinforcePlusPlus(group_baseline=True), reinforce_plus_plus_by_group, 0.5),
    "GSPO": (GSPO(), gspo, 1.5e-3),
    "CISPO": (CISPO(), cispo, 2.5),
    "DAPO": (DAPO(), dapo, 0.5),
}
"""With the formula, and how far old log-probabilities are from the policy's: some ratios are clipped, some are not."""


def recorded(folder: Path, spread: float) -> tuple[list[EpisodeGroup], Padded, torch.nn.Module]:
    """Three tasks with four answers: as episodes whose log-probabilities are the old ones, and as a padded batch."""
    rng, module = random.Random(3), own_model(folder, "float64")
    groups: list[EpisodeGroup] = []
    shape = (3, 4, LONGEST)
    old, mask = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    reward = torch.zeros(shape[:2], dtype=torch.float64)
    shared = [rng.randrange(VOCABULARY) for _ in range(9)]
    rows: list[Tensor] = []
    for task in range(3):
        prompt = shared + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 5))]
        members = []
        for repeat in range(4):
            answer = [rng.randrange(3) for _ in range(rng.randint(1, LONGEST))]
            ids = torch.tensor([[*prompt, *answer]])
            every = module(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
            now = every[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]
            before = now.detach() + torch.tensor([rng.uniform(-spread, spread) for _ in answer], dtype=torch.float64)
            before = before.float().double()  # as micro-batches hold them
            rows.append(torch.cat([now, torch.zeros(LONGEST - len(answer), dtype=torch.float64)]))
            old[task, repeat, : len(answer)], mask[task, repeat, : len(answer)] = before, 1.0
            reward[task, repeat] = rng.choice([0.0, 0.3, 1.0])
            nodes = [node(0, None, prompt), node(1, 0, answer, sampled=len(answer), logprobs=before.tolist())]
            members.append(episode(nodes, reward=float(reward[task, repeat]), name=f"{task}-{repeat}"))
        groups.append(group(members))
    logp = torch.stack(rows).reshape(shape)
    return groups, Padded(reward, logp, old, mask), module


@pytest.mark.parametrize("layout", some(["tree", "rows"], 1))
@pytest.mark.parametrize("name", PUBLISHED)
def test_value_and_gradient_are_those_of_the_published_objective(
    small_folder: Path, name: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the chunked head, three rows at a time, over prefix trees and rows, in several micro-batches."""
    algorithm, objective, spread = PUBLISHED[name]
    algorithm.max_response_tokens = LONGEST
    groups, padded, module = recorded(small_folder, spread)
    expected = -objective(padded)
    expected.backward()
    theirs = {key: parameter.grad for key, parameter in module.named_parameters() if parameter.grad is not None}

    monkeypatch.setattr(head, "LOGITS_PER_CHUNK", 3 * VOCABULARY)
    timelines = weighted(groups, advantages_of(algorithm, groups), algorithm.token_weights, constant=LONGEST)
    model = PolicyModel.load(small_folder, ModelConfig(device="cpu", dtype="float32"), seed=0)
    parts = [pack(part, CPU, layout=layout) for part in split(timelines, 40, layout=layout)]
    assert len(parts) > 1
    for part in parts:
        part.inputs = replace(part.inputs, old_logprob_E=part.inputs.engine_logprob_E)
    sums = accumulate_gradient(model, parts, policy_loss(algorithm), 1.0)
    assert float(sums.loss) == pytest.approx(float(expected.detach()), rel=2e-6, abs=2e-6)
    assert distance(model.master_weights.gradients(), theirs) < 2e-6
    clipped = sums.mismatch.metrics()["clip_fraction"]
    assert 0 < clipped < 1
