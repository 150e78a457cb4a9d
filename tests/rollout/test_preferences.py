"""Pairs of answers that tasks bring, and the loss of them against one written with transformers and autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from astune import Task
from astune.algorithm import advantages_of
from astune.config.schema import AstuneConfig
from astune.renderers import Renderer
from astune.rollout.demonstrations import preference
from astune.rollout.request import EpisodeRequest
from astune.schema import ConfigError, EpisodeGroup, TaskReaderError, TrainingBatch
from astune.trainer.policy import PolicyTrainer

BETA = 0.3
EARLIER = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello to you."},
    {"role": "user", "content": "What is 1 + 2?"},
]
TASKS = [
    Task("a", main_query="What is 1 + 2?", metadata={"chosen": "It is 3.", "rejected": "It is 4, or rather 5, is it?"}),
    Task("b", init_messages=EARLIER, metadata={"answer": "3", "rejected": [{"role": "assistant", "content": "7."}]}),
    Task("c", main_query="Name a fruit.", metadata={"chosen": "A ripe pear.", "rejected": "A stone."}),
]


def config(**more: Any) -> AstuneConfig:
    trainer = {"algorithm": {"type": "dpo", "params": {"beta": BETA}}, "optim": {"warmup_steps": 0, "lr": 1e-3}}
    model = {"device": "cpu", "dtype": "float32", **more.pop("model", {})}
    return AstuneConfig.model_validate({"model": model, "trainer": {**trainer, **more}})


def groups(renderer: Renderer, tasks: list[Task] = TASKS) -> list[EpisodeGroup]:
    return [
        EpisodeGroup(task, preference(EpisodeRequest(task, "train", 1, at, 1.0), renderer, config()))
        for at, task in enumerate(tasks)
    ]


def reference_loss(policy: Any, start: Any, pairs: list[EpisodeGroup]) -> Tensor:
    """Rafailov et al. 2023, eq. 7, one sequence at a time."""

    def of_answer(model: Any, group: EpisodeGroup, number: int) -> Tensor:
        [timeline] = group.episodes[number].timelines
        ids = torch.tensor([timeline.token_ids])
        first = next(span.start for span in timeline.spans if span.sampled)
        logprobs = model(input_ids=ids).logits[0, first - 1 : -1].log_softmax(-1)
        return logprobs.gather(1, ids[0, first:, None]).sum()

    margins = []
    for group in pairs:
        with torch.no_grad():
            of_start = of_answer(start, group, 0) - of_answer(start, group, 1)
        margins.append(of_answer(policy, group, 0) - of_answer(policy, group, 1) - of_start)
    return -torch.nn.functional.logsigmoid(BETA * torch.stack(margins)).mean()


def test_the_chosen_answer_comes_first_and_what_was_said_before_is_not_trained(renderer: Renderer) -> None:
    [chosen, rejected] = groups(renderer)[1].episodes
    assert [node.content for node in chosen.forest.nodes if node.sampled] == ["3"]
    assert [node.content for node in rejected.forest.nodes if node.sampled] == ["7."]
    assert (chosen.raw_reward, rejected.raw_reward) == (1.0, 0.0)
    assert (chosen.status, rejected.status) == ("success", "failed")
    assert chosen.episode_id != rejected.episode_id


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]], ids=["plain", "system"])
def test_answers_that_repeat_the_question_ask_it_once(renderer: Renderer, system: list[dict[str, str]]) -> None:
    question = {"role": "user", "content": "What is 1 + 2?"}
    opening: Any = [*system, question]
    texts = {"chosen": "3", "rejected": "4"}
    whole = {name: [question, {"role": "assistant", "content": text}] for name, text in texts.items()}
    [repeated, once] = groups(renderer, [Task("t", init_messages=opening, metadata=each) for each in (whole, texts)])
    assert [each.forest.nodes for each in repeated.episodes] == [each.forest.nodes for each in once.episodes]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (["3", "three"], "no text and no list of messages"),
        (
            [{"role": "user", "content": "And 2 + 2?"}, {"role": "assistant", "content": "4"}],
            "begins with a message of",
        ),
    ],
)
def test_an_answer_that_is_none_is_refused(renderer: Renderer, chosen: list[Any], said: str) -> None:
    with pytest.raises(TaskReaderError, match=f"task t: metadata.chosen.* {said}"):
        groups(renderer, [Task("t", main_query="What is 1 + 2?", metadata={"chosen": chosen, "rejected": "5"})])


@pytest.mark.parametrize("metadata", [{}, {"chosen": "3"}, {"rejected": "3"}, {"answer": 3, "rejected": "3"}])
def test_a_task_without_two_different_answers_is_named(renderer: Renderer, metadata: dict[str, Any]) -> None:
    with pytest.raises(TaskReaderError, match=r"task t has no preferred answer"):
        groups(renderer, [Task("t", main_query="What is 1 + 2?", metadata=metadata)])


@pytest.mark.slow
@pytest.mark.parametrize("tokens_per_microbatch", [4096, 48], ids=["together", "pairs cut in two"])
def test_the_loss_and_its_gradient_are_those_of_plain_torch(
    renderer: Renderer, tiny_folder: Path, tmp_path: Path, tokens_per_microbatch: int
) -> None:
    pairs = groups(renderer)
    trainer = PolicyTrainer.load(tiny_folder, config(tokens_per_microbatch=tokens_per_microbatch))
    start = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    policy = start
    for step in (1, 2):  # margins are 0 at first
        policy.zero_grad()
        wanted = reference_loss(policy, start, pairs)
        wanted.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in policy.parameters() if p.grad is not None])
        report = trainer.step(TrainingBatch(step, pairs, advantages_of(trainer.algorithm, pairs)))
        assert report.metrics["loss"] == pytest.approx(wanted.item(), rel=1e-5)
        assert report.metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
        if tokens_per_microbatch < 100:
            assert report.metrics["microbatches"] > len(pairs)
        trainer.save(tmp_path / f"{step}")
        policy = AutoModelForCausalLM.from_pretrained(tmp_path / f"{step}", dtype=torch.float32)
    assert report.metrics["chosen_preferred"] == 1.0
    assert report.metrics["margin_mean"] > 0
    assert report.metrics["importance_mean"] == 1.0


def test_a_report_is_about_the_pairs_of_every_update_of_a_step(renderer: Renderer, tiny_folder: Path) -> None:
    pairs = groups(renderer)[:2]
    trainer = PolicyTrainer.load(tiny_folder, config(loss={"updates_per_step": 2}))
    report = trainer.step(TrainingBatch(1, pairs, advantages_of(trainer.algorithm, pairs)))
    # The first update's pair has a margin of 0, where the policy begins; the second one's was moved by that update.
    assert report.metrics["chosen_preferred"] == 0.5
    assert report.metrics["loss"] < 0.693147


@pytest.mark.slow
def test_adapters_are_compared_with_the_model_without_them(renderer: Renderer, tiny_folder: Path) -> None:
    pairs = groups(renderer)
    trainer = PolicyTrainer.load(tiny_folder, config(model={"lora": {"rank": 4}}))
    reports = [
        trainer.step(TrainingBatch(step, pairs, advantages_of(trainer.algorithm, pairs))).metrics for step in (1, 2)
    ]
    assert reports[0]["loss"] == pytest.approx(0.693147, rel=1e-5)
    assert reports[1]["loss"] < reports[0]["loss"]


@pytest.mark.parametrize("term", [{"token_weights": "token"}, {"kl_coef": 0.1}, {"entropy_coef": 0.1}])
def test_terms_of_single_tokens_are_refused_by_name(tiny_folder: Path, term: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=rf"trainer\.loss\.{next(iter(term))} is .*, and the loss of dpo is one of pairs"
    ):
        PolicyTrainer.load(tiny_folder, config(loss=term))
