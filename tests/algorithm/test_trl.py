"""Losses, gradients and advantages of the algorithms that TRL has against TRL's own."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from trainer_helpers import VOCABULARY, distance, episode, group, node, own_model, policy_loss

from astune.algorithm import CISPO, DAPO, DPO, GRPO, GSPO, RLOO, Algorithm, DrGRPO, Supervised, advantages_of
from astune.config.schema import ModelConfig
from astune.schema import Episode, EpisodeGroup
from astune.trainer.gradient import accumulate_gradient
from astune.trainer.loss import LossInputs
from astune.trainer.microbatch import MicroBatch, pack, split
from astune.trainer.policy_model import PolicyModel
from astune.trainer.preferences import add_margins
from astune.trainer.samples import WeightedTimeline, weighted

PYTHON = Path(".venv-trl/bin/python")
SIDE = Path(__file__).parent / "trl_side.py"
pytestmark = pytest.mark.skipif(not PYTHON.is_file(), reason="needs TRL's environment: scripts/make_peer_env.sh trl")
LONGEST = 8
BETA = 0.3
END = VOCABULARY - 1
"""The token that ends an answer."""
CASES: dict[str, tuple[Algorithm, dict[str, Any], float]] = {
    "GRPO": (GRPO(), {"loss_type": "grpo", "level": "token", "low": 0.2, "high": 0.28}, 0.5),
    "Dr. GRPO": (DrGRPO(), {"loss_type": "dr_grpo", "level": "token", "low": 0.2, "high": 0.2}, 0.5),
    "GSPO": (GSPO(), {"loss_type": "grpo", "level": "sequence", "low": 3e-4, "high": 4e-4}, 1.5e-3),
    "CISPO": (CISPO(), {"loss_type": "cispo", "level": "token", "low": 0.2, "high": 5.0}, 2.5),
    "DAPO": (DAPO(), {"loss_type": "dapo", "level": "token", "low": 0.2, "high": 0.28}, 0.5),
    "RLOO": (RLOO(), {"loss_type": "rloo", "low": 0.2, "high": 0.2}, 0.0),
}
"""With TRL's settings, and how far old log-probabilities are from the policy's."""
SAME = [name for name in CASES if name != "RLOO"]
REWARDS: list[list[float | None]] = [
    [1.0, 0.0, 0.0, 0.0],
    [0.3, 1.0, None, 0.1],
    [0.5, 0.5, 0.5, 0.5],
    [None, None, None, 1.0],
]
DEMONSTRATIONS = [([3, 4, 5], [6, 7, END]), ([3, 4], [9, END]), ([8], [10, 11, 12, 13, END])]
PREFERENCES = [
    ([3, 4, 5], [6, 7, END], [9, END]),
    ([3, 4, 6], [9, 8, 7, 10, END], [11, END]),
    ([8], [12, 13, 14, END], [1, 2, END]),
]


@dataclass(frozen=True)
class Trl:
    """TRL's answers, and the models that they are about: the policy, and the start of preferences."""

    answers: dict[str, Any]
    gradients: Path
    policy: Path
    start: Path


def answers(spread: float) -> dict[str, list[Any]]:
    """Eight answers, padded: what the policies say of them, and their advantages."""
    rng = random.Random(5)
    case: dict[str, list[Any]] = {"logp": [], "old": [], "mask": [], "advantages": []}
    for _ in range(8):
        n = rng.randint(1, LONGEST)
        logp = [rng.uniform(-4, -0.1) for _ in range(n)]
        rest = [0.0] * (LONGEST - n)
        case["logp"].append(logp + rest)
        case["old"].append([value + rng.uniform(-spread, spread) for value in logp] + rest)
        case["mask"].append([1.0] * n + rest)
        case["advantages"].append(rng.uniform(-2, 2))
    return case


def text(tokens: Sequence[int]) -> str:
    return "".join(f" {token:02}" for token in tokens)


@pytest.fixture(scope="module")
def trl(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trl:
    """TRL asked once for all of it: most of the time is its import."""
    folder, start = tmp_path_factory.mktemp("trl"), tmp_path_factory.mktemp("start")
    generator = torch.Generator().manual_seed(1)
    module = own_model(small_folder, "float32")
    for parameter in module.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    module.save_pretrained(start)  # type: ignore[operator]
    for name in ("tokenizer.json", "chat_template.jinja"):
        (start / name).write_bytes((small_folder / name).read_bytes())
    question = {
        "folder": str(small_folder),
        "start": str(start),
        "out": str(folder),
        "beta": BETA,
        "losses": [settings | {"longest": LONGEST} | answers(spread) for _, settings, spread in CASES.values()],
        "rewards": REWARDS,
        "demonstrations": [{"prompt": text(prompt), "completion": text(given)} for prompt, given in DEMONSTRATIONS],
        "preferences": [
            {"prompt": text(prompt), "chosen": text(chosen), "rejected": text(rejected)}
            for prompt, chosen, rejected in PREFERENCES
        ],
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, SIDE], check=False, input=json.dumps(question), capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Trl(json.loads(done.stdout.splitlines()[-1]), folder, small_folder, start)


def own_loss(name: str) -> tuple[float, Tensor]:
    """The loss of `answers`, and its gradient with respect to log-probabilities, in float64."""
    algorithm, _, spread = CASES[name]
    case = answers(spread)
    lengths = [int(sum(row)) for row in case["mask"]]
    episodes = [episode([node(0, None, [1]), node(1, 0, [2] * n, sampled=n)]) for n in lengths]
    timelines = weighted([group(episodes)], [case["advantages"]], algorithm.token_weights, constant=LONGEST)
    mask = torch.tensor(case["mask"]).bool()
    logp, old = (torch.tensor(case[key], dtype=torch.float64) for key in ("logp", "old"))
    logp.requires_grad_()
    weight_E = torch.tensor([t.token_weight for t in timelines for _ in t.positions], dtype=torch.float64)
    advantage_E = torch.tensor([a for t in timelines for a in t.advantages], dtype=torch.float64)
    sequence_E = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    inputs = LossInputs(advantage_E, weight_E, old[mask], torch.zeros_like(sequence_E), sequence_E, old[mask])
    logprob_E = logp[mask]
    inputs = inputs.with_sequence_ratios(logprob_E)
    loss, _ = policy_loss(algorithm)(logprob_E, torch.zeros_like(logprob_E), inputs)
    loss.backward()
    assert logp.grad is not None
    return float(loss.detach()), logp.grad


def theirs_of(trl: Trl, name: str) -> tuple[float, Tensor]:
    found = trl.answers["losses"][[*CASES].index(name)]
    return found["loss"], torch.tensor(found["gradient"], dtype=torch.float64)


def test_loss_and_gradient_are_those_of_trl(trl: Trl) -> None:
    for name in SAME:
        (own, own_gradient), (theirs, their_gradient) = own_loss(name), theirs_of(trl, name)
        assert own == pytest.approx(theirs, rel=1e-12), name
        torch.testing.assert_close(own_gradient, their_gradient, rtol=1e-10, atol=0)


def test_the_gradient_of_rloos_first_update_is_trls_over_the_constant(trl: Trl) -> None:
    """Later TRL clips the ratio of a whole answer, and here that of each token is clipped."""
    (own, own_gradient), (theirs, their_gradient) = own_loss("RLOO"), theirs_of(trl, "RLOO")
    torch.testing.assert_close(own_gradient * LONGEST, their_gradient, rtol=1e-10, atol=0)
    assert own != pytest.approx(theirs)


def own_advantages(algorithm: Algorithm) -> Tensor:
    """Advantages of `REWARDS`; 0, as TRL has it, where there is no reward."""
    rewarded = [[episode([node(0, None, [1])], reward=reward) for reward in rewards] for rewards in REWARDS]
    rows = advantages_of(algorithm, [group(episodes) for episodes in rewarded])
    return torch.tensor(rows, dtype=torch.float64).nan_to_num(0.0)


def their_advantages(trl: Trl, name: str) -> Tensor:
    return torch.tensor(trl.answers["advantages"][name], dtype=torch.float64).reshape(len(REWARDS), -1)


def test_advantages_are_those_of_trl(trl: Trl) -> None:
    for name, algorithm in {"Dr. GRPO": DrGRPO(), "RLOO": RLOO()}.items():
        torch.testing.assert_close(own_advantages(algorithm), their_advantages(trl, name), rtol=1e-6, atol=1e-7)


def test_advantages_of_grpo_are_those_of_trl_in_the_unit_of_all_episodes(trl: Trl) -> None:
    """TRL divides by the deviation whose squares are divided by K - 1, and adds 0.0001 to it."""
    for rewards, own_K, theirs_K in zip(REWARDS, own_advantages(GRPO()), their_advantages(trl, "GRPO"), strict=True):
        known = torch.tensor([reward for reward in rewards if reward is not None], dtype=torch.float64)
        if known.max() == known.min():
            assert own_K.tolist() == theirs_K.tolist() == [0.0] * len(rewards)
        else:
            unit = known.std(correction=0) / (known.std(correction=1) + 1e-4)
            torch.testing.assert_close(own_K * unit, theirs_K, rtol=1e-6, atol=1e-7)


def answered(prompt: list[int], given: list[int], reward: float = 1.0) -> Episode:
    nodes = [node(0, None, prompt), node(1, 0, given, sampled=len(given))]
    return episode(nodes, reward=reward, name=text([*prompt, *given]))


def micro_batches(groups: Sequence[EpisodeGroup], algorithm: Algorithm) -> list[MicroBatch]:
    timelines: list[WeightedTimeline] = weighted(groups, advantages_of(algorithm, groups), algorithm.token_weights)
    parts = [pack(part, torch.device("cpu")) for part in split(timelines, 8)]
    assert len(parts) > 1
    return parts


def loaded(folder: Path) -> PolicyModel:
    return PolicyModel.load(folder, ModelConfig(device="cpu", dtype="float32"), seed=0)


def test_sft_has_the_loss_and_gradient_of_trls_trainer(trl: Trl) -> None:
    model = loaded(trl.policy)
    groups = [group([answered(prompt, given)]) for prompt, given in DEMONSTRATIONS]
    sums = accumulate_gradient(model, micro_batches(groups, Supervised()), policy_loss(Supervised()), 1.0)
    assert float(sums.loss) == pytest.approx(trl.answers["sft"], rel=1e-6)
    assert distance(model.master_weights.gradients(), load_file(trl.gradients / "sft.safetensors")) < 1e-6


def test_dpo_has_the_loss_and_gradient_of_trls_trainer(trl: Trl) -> None:
    model, start, algorithm = loaded(trl.policy), loaded(trl.start), DPO(beta=BETA)
    groups = [
        group([answered(prompt, chosen), answered(prompt, rejected, reward=0.0)])
        for prompt, chosen, rejected in PREFERENCES
    ]
    parts = micro_batches(groups, algorithm)
    for part in parts:
        part.inputs = replace(part.inputs, reference_logprob_E=start.logprobs(part, 1.0))
    margins = add_margins(parts, lambda part: model.logprobs(part, 1.0))
    assert min(margins) < -0.5 < 0.5 < max(margins)
    sums = accumulate_gradient(model, parts, policy_loss(algorithm), 1.0)
    assert float(sums.loss) == pytest.approx(trl.answers["dpo"], rel=1e-6)
    assert distance(model.master_weights.gradients(), load_file(trl.gradients / "dpo.safetensors")) < 1e-6
