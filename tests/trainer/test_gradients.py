"""One loss (law 4): trees, micro-batches and compute formats give the gradient of timelines taken one by one."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import torch
from examples import some
from torch import Tensor
from trainer_helpers import distance, policy_loss, policy_model, random_batch, reference_gradient, tree_gradient
from transformers import AutoModelForCausalLM, AutoTokenizer

from astune.schema import TrainingBatch
from astune.trainer.microbatch import pack, split
from astune.trainer.samples import WeightedTimeline, weighted

CPU = torch.device("cpu")


def timelines_of(batch: TrainingBatch) -> list[WeightedTimeline]:
    return weighted(batch.groups, batch.advantages, "episode")


@pytest.mark.parametrize("seed", some([1, 0, 2, 3, 4, 5], 2))
def test_a_prefix_tree_gives_the_gradient_of_timelines_taken_one_by_one(small_folder: Path, seed: int) -> None:
    loss = policy_loss(entropy_coef=0.01 * (seed % 2))
    temperature = (1.0, 0.7)[seed % 2]
    timelines = timelines_of(random_batch(seed, turns=1 + seed % 3))
    value, theirs = reference_gradient(small_folder, timelines, loss, temperature=temperature, dtype="float32")
    ours_value, ours = tree_gradient(policy_model(small_folder), timelines, loss, temperature=temperature)
    assert distance(ours, theirs) < 1e-5
    assert ours_value == pytest.approx(value, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("tokens", some([1, 60, 110, 160], 2))
def test_the_size_of_a_micro_batch_does_not_change_the_gradient(small_folder: Path, tokens: int) -> None:
    timelines = timelines_of(random_batch(11))
    model = policy_model(small_folder)
    value, whole = tree_gradient(model, timelines, policy_loss())
    cut_value, cut = tree_gradient(model, timelines, policy_loss(), tokens=tokens)
    assert len(list(split(timelines, tokens))) > 1
    assert distance(cut, whole) < 1e-5
    assert cut_value == pytest.approx(value, rel=1e-5)


def test_micro_batches_hold_every_timeline_once_within_their_bound_and_keep_groups_whole() -> None:
    timelines = timelines_of(random_batch(5, n_groups=6))
    for tokens in (120, 250, 600):
        parts = list(split(timelines, tokens))
        assert sorted(id(t) for part in parts for t in part) == sorted(id(t) for t in timelines)
        for part in parts:
            assert len(part) == 1 or len(pack(part, CPU).token_ids_T) <= tokens
    parts = list(split(timelines, 250))
    assert all(len([part for part in parts if any(t.group == group for t in part)]) == 1 for group in range(6))


@pytest.mark.slow
def test_bfloat16_trees_add_no_error_beyond_that_of_bfloat16_itself(small_folder: Path) -> None:
    loss = policy_loss()
    for seed in range(3):
        timelines = timelines_of(random_batch(seed))
        _, exact = reference_gradient(small_folder, timelines, loss, dtype="float32")
        _, one_by_one = reference_gradient(small_folder, timelines, loss, dtype="bfloat16")
        _, tree = tree_gradient(policy_model(small_folder, "bfloat16"), timelines, loss)
        assert distance(tree, exact) < 1.2 * distance(one_by_one, exact)


def test_a_row_that_several_branches_follow_and_equal_answers_are_both_trained(small_folder: Path) -> None:
    prompt = [5, 6, 7, 8]
    timelines = [
        WeightedTimeline([*prompt, 1, 2], [4, 5], [-1.0, -1.0], [0, 0], [1.0, 1.0], 0.1, 0),
        WeightedTimeline([*prompt, 1, 2], [4, 5], [-2.0, -3.0], [0, 0], [-0.5, 0.5], 0.2, 0),
        WeightedTimeline([*prompt, 3, 2], [4, 5], [-1.0, -1.0], [0, 0], [0.7, 0.7], 0.1, 0),
        WeightedTimeline(prompt, [2, 3], [-1.0, -1.0], [0, 0], [0.3, 0.9], 0.1, 0),
    ]
    model = policy_model(small_folder)
    assert len(pack(timelines, CPU).token_ids_T) == len(prompt) + 2
    _, theirs = reference_gradient(small_folder, timelines, policy_loss(), dtype="float32")
    assert distance(tree_gradient(model, timelines, policy_loss())[1], theirs) < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_transformers_own_forward(small_folder: Path, temperature: float) -> None:
    timelines = timelines_of(random_batch(3))
    module = AutoModelForCausalLM.from_pretrained(small_folder, dtype=torch.float32).eval()
    expected: list[Tensor] = []
    with torch.no_grad():
        for timeline in timelines:
            ids = torch.tensor([timeline.token_ids])
            logprobs = (module(input_ids=ids, use_cache=False).logits[0] / temperature).log_softmax(-1)
            positions = torch.tensor(timeline.positions)
            expected.append(logprobs[positions - 1].gather(1, ids[0, positions, None])[:, 0])
    model = policy_model(small_folder)
    alone = [model.logprobs(pack([timeline], CPU), temperature) for timeline in timelines]
    torch.testing.assert_close(torch.cat(alone), torch.cat(expected), rtol=1e-5, atol=1e-5)
    together = model.logprobs(pack(timelines, CPU), temperature)
    torch.testing.assert_close(together.sort().values, torch.cat(expected).sort().values, rtol=1e-5, atol=1e-5)


def conversations(folder: Path) -> list[WeightedTimeline]:
    """Two groups of two two-turn answers to a word problem, as the real model would read and write them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    timelines: list[WeightedTimeline] = []
    for group, (a, b) in enumerate([(49, 15), (73, 28)]):
        question = [{"role": "user", "content": f"Anna has {a} pens and buys {b} more. How many pens has she now?"}]
        prompt = ids(tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True))
        for call, advantage in ((f"{a}+{b}", 1.7), (f"{a}-{b}", -0.9)):
            parts = [prompt, ids(f"<calc>{call}</calc>"), ids(" The result is 64. So the answer is"), ids(f" {a + b}.")]
            starts = [sum(map(len, parts[:n])) for n in range(5)]
            trained = [*range(starts[1], starts[2]), *range(starts[3], starts[4])]
            advantages = [advantage] * len(trained)
            logprobs = [-0.5] * len(trained)
            timelines.append(
                WeightedTimeline(
                    [*chain(*parts)], trained, logprobs, [0] * len(trained), advantages, 1 / 4 / len(trained), group
                )
            )
    return timelines


@pytest.mark.slow
def test_the_real_model_agrees_with_transformers_in_log_probabilities_and_gradient(smol_folder: Path) -> None:
    timelines = conversations(smol_folder)
    loss = policy_loss()
    value, exact = reference_gradient(smol_folder, timelines, loss, dtype="float64")
    ours_value, ours = tree_gradient(policy_model(smol_folder), timelines, loss)
    assert ours_value == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert distance(ours, exact) < 2e-5
    _, one_by_one = reference_gradient(smol_folder, timelines, loss, dtype="float32")
    assert distance(ours, exact) < 2 * distance(one_by_one, exact)
    _, ours = tree_gradient(policy_model(smol_folder, "bfloat16"), timelines, loss)
    _, one_by_one = reference_gradient(smol_folder, timelines, loss, dtype="bfloat16")
    assert distance(ours, exact) < 1.2 * distance(one_by_one, exact)
