"""Every algorithm, and one of a user's own, raises the reward of a tiny random model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_helpers import VOCABULARY, config, episode, group, node, own_model

from astune.algorithm import ALGORITHMS, load_algorithm
from astune.config.schema import AlgorithmConfig, AstuneConfig
from astune.schema import ConfigError, EpisodeGroup
from astune.trainer.batch import batch_of
from astune.trainer.policy import PolicyTrainer

PAGE = Path(__file__).parents[2] / "docs/en/algorithms.md"
LIKED = VOCABULARY // 4
"""Tokens below it are rewarded."""
N_TOKENS = 6


def with_algorithm(type_: str, **params: Any) -> AstuneConfig:
    algorithm = AlgorithmConfig(type=type_, params=params)
    loss = {"updates_per_step": 2}
    return config(algorithm=algorithm, loss=loss, optim={"lr": 1e-2}, tasks_per_step=2)


@torch.no_grad()
def sampled(sampler: Any, prompt: list[int], n: int) -> EpisodeGroup:
    ids_KT = torch.tensor([prompt] * n)
    logprobs: list[torch.Tensor] = []
    for _ in range(N_TOKENS):
        every_KV = sampler(input_ids=ids_KT, use_cache=False).logits[:, -1].log_softmax(-1)
        token_K1 = every_KV.exp().multinomial(1)
        logprobs.append(every_KV.gather(1, token_K1))
        ids_KT = torch.cat([ids_KT, token_K1], dim=1)
    answers, recorded = ids_KT[:, len(prompt) :].tolist(), torch.cat(logprobs, dim=1).tolist()
    episodes = [
        episode(
            [node(0, None, prompt), node(1, 0, answer, sampled=N_TOKENS, logprobs=values)],
            reward=sum(token < LIKED for token in answer) / N_TOKENS,
            name=f"{prompt}-{number}",
        )
        for number, (answer, values) in enumerate(zip(answers, recorded, strict=True))
    ]
    return group(episodes)


def rewards(folder: Path, settings: AstuneConfig, base_dir: Path | None = None, *, steps: int = 20) -> list[float]:
    torch.manual_seed(1)
    trainer = PolicyTrainer.load(folder, settings, load_algorithm(settings, base_dir))
    sampler = own_model(folder, "float32")
    means: list[float] = []
    for step in range(1, steps + 1):
        sampler.load_state_dict(dict(trainer.named_tensors()), strict=False)
        groups = [sampled(sampler, prompt, 8) for prompt in ([5, 6, 7], [8, 9])]
        trainer.step(batch_of(step, groups, trainer.algorithm))
        means.append(sum(reward for one in groups for reward in one.rewards) / 16)
    return means


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, one in ALGORITHMS.items() if one.learns_from == "rollouts"])
def test_a_short_training_raises_the_reward(small_folder: Path, name: str) -> None:
    means = rewards(small_folder, with_algorithm(name))
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3 + 0.2


@pytest.mark.slow
def test_the_algorithm_that_the_documentation_writes_trains(small_folder: Path, tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(code.splitlines()) <= 20
    (tmp_path / "my_algorithm.py").write_text(code)
    settings = with_algorithm("my_algorithm.py->MedianBaseline", bad=0.3)
    means = rewards(small_folder, settings, tmp_path)
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3 + 0.2


@pytest.mark.parametrize(
    ("algorithm", "loss", "message"),
    [
        ({"type": "grop"}, {}, "there is no algorithm 'grop'"),
        (
            {"type": "gspo", "params": {"clip_hi": 1}},
            {},
            "trainer.algorithm.params.clip_hi: GSPO accepts no argument clip_hi",
        ),
        (
            "rloo",
            {"normalise_advantages": True},
            "trainer.loss.normalise_advantages: RLOO accepts no argument normalise_advantages",
        ),
        ({"params": {"clip_low": 0.1}}, {"clip_low": 0.3}, "trainer.loss.clip_low is 0.3, and"),
        ({"params": {"clip_low": 0}}, {}, "clip_low is 0, and has to be above 0"),
    ],
)
def test_what_an_algorithm_does_not_know_is_refused_by_name(algorithm: Any, loss: dict[str, Any], message: str) -> None:
    settings = AstuneConfig.model_validate({"trainer": {"algorithm": algorithm, "loss": loss}})
    with pytest.raises(ConfigError, match=message):
        load_algorithm(settings)


def test_keys_of_the_loss_are_the_algorithms_parameters_and_its_weights_can_be_overridden() -> None:
    loss = {"clip_high": 0.5, "token_weights": "token"}
    algorithm: Any = load_algorithm(AstuneConfig.model_validate({"trainer": {"algorithm": "grpo", "loss": loss}}))
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.token_weights) == (0.2, 0.5, "token")
