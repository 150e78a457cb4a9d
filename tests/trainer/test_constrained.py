"""Tokens that were sampled under a grammar: trained within its masks, or left out of the loss, and always booked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer_helpers import (
    VOCABULARY,
    config,
    distance,
    episode,
    group,
    node,
    policy_loss,
    policy_model,
    random_batch,
    reference_gradient,
    tree_gradient,
)
from transformers import AutoTokenizer

from astune.engine.local.grammar import Bits, Grammars
from astune.schema import Constraint, Episode, Grammar, TrainerError, TrainingBatch
from astune.trainer.microbatch import Layout, pack
from astune.trainer.policy import PolicyTrainer
from astune.trainer.samples import account, weighted

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
NUMBER = Constraint(Grammar("regex", "-?[0-9]{1,6}( kg)?"), (2, 0))
ANY = Constraint(Grammar("regex", "(?s:.*)"), (2, 0))


class RandomMasks(Grammars):
    """Stands for a library: masks that depend on the grammar and on what came before, and hold what came next."""

    def __init__(self) -> None:
        pass

    def masks(self, constraint: Constraint, token_ids: Sequence[int]) -> list[Bits]:
        masks: list[Bits] = []
        for position, token in enumerate(token_ids):
            rng = np.random.default_rng([int(constraint.grammar.text), *token_ids[:position]])
            allowed = rng.random(VOCABULARY) < rng.choice([0.02, 0.3, 1.0])
            allowed[token] = True
            masks.append(np.packbits(allowed, bitorder="little"))
        return masks


def constrained(batch: TrainingBatch, seed: int, rate: float = 0.6) -> TrainingBatch:
    """Some of the batch's answers were sampled under a grammar, of which there are three."""
    rng = random.Random(seed)
    for members in batch.groups:
        for member in members.episodes:
            for answer in member.forest.nodes:
                if answer.sampled and rng.random() < rate:
                    answer.constraint = Constraint(Grammar("regex", str(rng.randrange(3))), (0,))
    return batch


@pytest.mark.parametrize(("seed", "tokens"), [(0, 8192), (1, 8192), (2, 8192), (3, 60), (4, 60), (5, 60)])
def test_the_gradient_within_masks_is_that_of_plain_autograd(small_folder: Path, seed: int, tokens: int) -> None:
    loss = policy_loss(entropy_coef=0.01 * (seed % 2))
    temperature = (1.0, 0.7)[seed % 2]
    batch = constrained(random_batch(seed, turns=1 + seed % 3), seed)
    timelines = weighted(batch.groups, batch.advantages, "episode")
    assert any(timeline.constrained for timeline in timelines)
    value, theirs = reference_gradient(
        small_folder, timelines, loss, temperature=temperature, dtype="float32", grammars=RandomMasks()
    )
    ours_value, ours = tree_gradient(
        policy_model(small_folder), timelines, loss, RandomMasks(), temperature=temperature, tokens=tokens
    )
    assert distance(ours, theirs) < 1e-5
    assert ours_value == pytest.approx(value, rel=1e-4, abs=1e-6)
    _, free = reference_gradient(
        small_folder,
        weighted(random_batch(seed, turns=1 + seed % 3).groups, batch.advantages, "episode"),
        loss,
        temperature=temperature,
        dtype="float32",
    )
    assert distance(free, theirs) > 0.05  # the masks mean something here


def test_bfloat16_adds_no_error_beyond_that_of_bfloat16_itself(small_folder: Path) -> None:
    for seed in range(3):
        batch = constrained(random_batch(seed), seed)
        timelines = weighted(batch.groups, batch.advantages, "episode")
        _, exact = reference_gradient(small_folder, timelines, policy_loss(), dtype="float32", grammars=RandomMasks())
        _, one_by_one = reference_gradient(
            small_folder, timelines, policy_loss(), dtype="bfloat16", grammars=RandomMasks()
        )
        _, tree = tree_gradient(policy_model(small_folder, "bfloat16"), timelines, policy_loss(), RandomMasks())
        assert distance(tree, exact) < 1.2 * distance(one_by_one, exact)


def test_equal_answers_under_different_grammars_and_under_none_each_have_their_own_probabilities(
    small_folder: Path,
) -> None:
    """They are one branch of the tree; the rows that they follow are there once for each mask."""
    prompt, answer = [5, 6, 7, 8], [1, 2]
    episodes = [
        episode([node(0, None, prompt), node(1, 0, answer, sampled=2, constraint=constraint)])
        for constraint in (None, Constraint(Grammar("regex", "0"), (0,)), Constraint(Grammar("regex", "1"), (0,)), None)
    ]
    timelines = weighted([group(episodes)], [[1.0, -0.5, 0.7, 0.3]], "episode")
    microbatch = pack(timelines, CPU, RandomMasks(), layout="tree")
    assert len(microbatch.token_ids_T) == len(prompt) + len(answer) - 1
    assert len(microbatch.row_R) == 6
    _, theirs = reference_gradient(small_folder, timelines, policy_loss(), dtype="float32", grammars=RandomMasks())
    layouts: list[Layout] = ["tree", "rows"]
    for layout in layouts:
        _, ours = tree_gradient(policy_model(small_folder), timelines, policy_loss(), RandomMasks(), layout=layout)
        assert distance(ours, theirs) < 1e-5


def test_masks_are_kept_once_and_only_where_there_are_any() -> None:
    batch = random_batch(3)
    assert pack(weighted(batch.groups, batch.advantages, "episode"), CPU).targets.masks is None
    batch = constrained(random_batch(3), 3)
    timelines = weighted(batch.groups, batch.advantages, "episode")
    masks = pack(timelines, CPU, RandomMasks()).targets.masks
    assert masks is not None
    assert len({mask.tobytes() for mask in masks.masks}) == len(masks.masks)
    with pytest.raises(TrainerError, match="under a grammar"):
        pack(timelines, CPU)


def answers(folder: Path, texts: Sequence[str], constraint: Constraint | None, **more: Any) -> list[Episode]:
    """Episodes of one prompt whose answers were sampled, each token at log-probability -2."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("How much does it weigh?")["input_ids"]
    episodes: list[Episode] = []
    for number, text in enumerate(texts):
        ids = [*tokenizer(text)["input_ids"], 2]
        nodes = [node(0, None, prompt), node(1, 0, ids, sampled=len(ids), logprobs=[-2.0] * len(ids))]
        nodes[1].constraint = constraint
        episodes.append(episode(nodes, reward=float(number % 2), name=f"e-{number}"))
        episodes[-1].constrained_tokens = more.get("constrained_tokens", "replay")
    return episodes


def test_real_masks_give_the_gradient_of_plain_autograd_too(tiny_folder: Path) -> None:
    episodes = answers(tiny_folder, ["12 kg", "-407", "9", "12"], NUMBER)
    episodes += answers(tiny_folder, ["It weighs 3 kg."], None)
    timelines = weighted([group(episodes)], [[1.0, -0.5, 0.7, 0.3, -1.0]], "episode")
    model = policy_model(tiny_folder)
    grammars = Grammars(tiny_folder, model.vocab_size)
    _, theirs = reference_gradient(tiny_folder, timelines, policy_loss(), dtype="float32", grammars=grammars)
    assert distance(tree_gradient(model, timelines, policy_loss(), grammars)[1], theirs) < 1e-5


def test_a_grammar_that_allows_everything_changes_only_what_control_tokens_had(tiny_folder: Path) -> None:
    """Some twenty tokens of 49,152: their part of the probability is shared out among the others."""
    model = policy_model(tiny_folder)
    grammars = Grammars(tiny_folder, model.vocab_size)
    logprobs = [
        model.logprobs(
            pack(weighted([group(answers(tiny_folder, ["12 kg"], limits))], [[1.0]], "episode"), CPU, grammars), 1.0
        )
        for limits in (None, ANY)
    ]
    gain = logprobs[1] - logprobs[0]
    assert (gain > 0).all()
    assert (gain < 0.01).all()


def test_a_step_learns_within_the_grammar_and_counts_its_tokens(tiny_folder: Path) -> None:
    """Of two numbers, the one that is wanted grows more probable among all numbers."""
    trainer = PolicyTrainer.load(tiny_folder, config(optim={"lr": 1e-3}))
    batch = TrainingBatch(1, [group(answers(tiny_folder, ["12", "77"], NUMBER))], [[1.0, -1.0]])
    n_tokens = sum(timeline.n_trained for one in batch.groups[0].episodes for timeline in one.timelines)
    before = within_grammar(trainer, tiny_folder)
    report = trainer.step(batch)
    assert report.trained_tokens == n_tokens == account(batch).trained
    after = within_grammar(trainer, tiny_folder)
    assert after["12"] > before["12"]
    assert after["77"] < before["77"]


def within_grammar(trainer: PolicyTrainer, folder: Path) -> dict[str, float]:
    logprobs: dict[str, float] = {}
    for text in ("12", "77"):
        timelines = weighted([group(answers(folder, [text], NUMBER))], [[1.0]], "episode")
        microbatch = pack(timelines, CPU, trainer._grammars)
        logprobs[text] = float(trainer._model.logprobs(microbatch, 1.0).sum())
    return logprobs


def test_several_updates_and_a_kl_term_use_the_masks_as_well(tiny_folder: Path) -> None:
    """The first update's ratio is 1, and the weights are the starting ones: nothing is clipped, and there is no KL."""
    loss = {"updates_per_step": 2, "kl_coef": 0.1}
    trainer = PolicyTrainer.load(tiny_folder, config(loss=loss, optim={"lr": 1e-12}, tasks_per_step=2))
    groups = [group(answers(tiny_folder, ["12", "77"], NUMBER)), group(answers(tiny_folder, ["5", "6 kg"], NUMBER))]
    metrics = trainer.step(TrainingBatch(1, groups, [[1.0, -1.0], [0.5, -0.5]])).metrics
    assert metrics["clip_fraction"] == 0
    assert metrics["kl_to_start"] == pytest.approx(0, abs=1e-6)


def test_masked_tokens_carry_no_loss_and_stand_in_an_account_of_their_own(tiny_folder: Path) -> None:
    free = answers(tiny_folder, ["It weighs 3 kg."], None, constrained_tokens="mask")
    under = answers(tiny_folder, ["12 kg", "-407"], NUMBER, constrained_tokens="mask")
    accounts = account(TrainingBatch(1, [group([*free, *under])], [[1.0, 0.0, -1.0]]))
    n_free, n_under = (sum(one.forest.sampled_tokens() for one in some) for some in (free, under))
    assert accounts.trained == n_free
    assert accounts.masked == {"sampled under a grammar": n_under}
    [timeline] = weighted([group([*free, *under])], [[1.0, 0.0, -1.0]], "episode")
    assert len(timeline.positions) == n_free
    assert timeline.constrained == []


def test_a_masked_answer_that_later_ones_build_upon_is_read_by_them(tiny_folder: Path) -> None:
    nodes = [
        node(0, None, [5, 6]),
        node(1, 0, [7, 8], sampled=2, constraint=NUMBER),
        node(2, 1, [9]),
        node(3, 2, [10, 11], sampled=2),
    ]
    one = episode(nodes)
    one.constrained_tokens = "mask"
    [timeline] = one.timelines
    assert timeline.token_ids == [5, 6, 7, 8, 9, 10, 11]
    assert timeline.loss_mask == [False] * 5 + [True] * 2
    assert [span.mask_reason for span in timeline.spans] == [None, "sampled under a grammar", None, None]
    replayed = episode(nodes).timelines[0]
    assert replayed.n_trained == 4
    assert [span.constraint for span in replayed.spans] == [None, NUMBER, None, None]


def test_tokens_that_their_grammar_does_not_allow_are_refused(tiny_folder: Path) -> None:
    trainer = PolicyTrainer.load(tiny_folder, config())
    batch = TrainingBatch(1, [group(answers(tiny_folder, ["12", "heavy"], NUMBER))], [[1.0, -1.0]])
    with pytest.raises(Exception, match="is none that the regex grammar"):
        trainer.step(batch)
    assert trainer.version == 0
