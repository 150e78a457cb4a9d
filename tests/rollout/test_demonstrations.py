"""Conversations that tasks bring, as episodes: the template's own tokens, of which the assistant's are trained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_stage import build_stage
from transformers import AutoModelForCausalLM

from astune import Task
from astune.algorithm import Supervised, advantages_of
from astune.config.schema import AstuneConfig
from astune.renderers import Renderer
from astune.rollout import DemonstrationPool
from astune.rollout.demonstrations import demonstration
from astune.rollout.request import EpisodeRequest
from astune.schema import ContextOverflow, Episode, TaskReaderError, TrainingBatch
from astune.trainer.policy import PolicyTrainer

CONVERSATION = [
    {"role": "system", "content": "You add."},
    {"role": "user", "content": "What is 1 + 2?"},
    {"role": "assistant", "content": "It is 3."},
    {"role": "user", "content": "And 3 + 4?"},
    {"role": "assistant", "content": "7, of course."},
]


def task(name: str = "t", **metadata: Any) -> Task:
    return Task(task_id=name, main_query="What is 1 + 2?", metadata=metadata)


def shown(renderer: Renderer, task: Task, **rollout: Any) -> Episode:
    config = AstuneConfig.model_validate({"rollout": rollout})
    return demonstration(EpisodeRequest(task, "train", 1, 0, 1.0), renderer, config)


def test_the_tokens_are_the_templates_and_those_of_the_assistant_are_trained(
    renderer: Renderer, tokenizer: Any
) -> None:
    episode = shown(renderer, task(messages=CONVERSATION))
    [timeline] = episode.timelines
    whole = tokenizer.apply_chat_template(CONVERSATION, tokenize=False).rstrip("\n")
    assert tokenizer.decode(timeline.token_ids) == whole
    sampled = [span for span in timeline.spans if span.sampled]
    said = [tokenizer.decode(timeline.token_ids[span.start : span.end]) for span in sampled]
    assert said == ["It is 3.<|im_end|>", "7, of course.<|im_end|>"]
    assert all(span.mask_reason is None for span in sampled)
    assert episode.reward is not None
    assert episode.reward.metadata == {"demonstration": True}


def test_an_answer_of_weight_0_is_read_and_calls_of_tools_are_learned(renderer: Renderer, tokenizer: Any) -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "3"}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    read = [CONVERSATION[0], CONVERSATION[1], {**CONVERSATION[2], "weight": 0}, CONVERSATION[3]]
    for weight, learned in ((1, ['"add"', "7, of course."]), (0, ["7, of course."])):
        messages = [*read, {**call, "weight": weight}, result, CONVERSATION[4]]
        [timeline] = shown(renderer, task(messages=messages, tools=tools)).timelines
        said = [tokenizer.decode(timeline.token_ids[span.start : span.end]) for span in timeline.spans if span.sampled]
        assert len(said) == len(learned)
        assert all(one in other for one, other in zip(learned, said, strict=True))
        assert "weight" not in tokenizer.decode(timeline.token_ids)
    with pytest.raises(TaskReaderError, match="has no demonstration"):
        shown(renderer, task(messages=read))


def test_a_reference_answer_is_a_demonstration(renderer: Renderer) -> None:
    episode = shown(renderer, task(answer=3))
    assert [node.content for node in episode.forest.nodes if node.sampled] == ["3"]


@pytest.mark.parametrize("metadata", [{}, {"messages": CONVERSATION[:2]}, {"messages": "hello"}])
def test_a_task_that_demonstrates_nothing_is_named(renderer: Renderer, metadata: dict[str, Any]) -> None:
    with pytest.raises(TaskReaderError, match=r"task t has no demonstration; give it metadata\.messages"):
        shown(renderer, task(**metadata))


def test_one_that_is_too_long_says_so(renderer: Renderer) -> None:
    long = [*CONVERSATION[:3], {"role": "user", "content": "word " * 500}, CONVERSATION[4]]
    with pytest.raises(ContextOverflow):
        shown(renderer, task(messages=long), max_model_len=256, max_response_length_in_one_turn=16)


async def test_a_step_of_demonstrations_accounts_for_every_token(renderer: Renderer) -> None:
    stage = build_stage(renderer, object)  # type: ignore[arg-type]
    config = AstuneConfig.model_validate({"rollout": {"max_model_len": 128, "max_response_length_in_one_turn": 16}})
    pool = DemonstrationPool(stage.pool, renderer, config, stage.watcher)
    tasks = [task("a", messages=CONVERSATION), task("b"), task("c", answer="x" * 2000), task("d", answer="4")]
    before = stage.engine.stats()
    groups = await pool.run_groups(tasks, step=1, split="train", num_repeat=8, temperature=1.0)
    assert [len(group.episodes) for group in groups] == [1, 0, 1, 1]
    assert groups[1].dropped is not None
    assert groups[1].dropped.startswith("no demonstration: task b")
    balance = pool.balance(groups, stage.engine.stats() - before)
    assert balance.difference == 0
    assert balance.trained == balance.sampled > 0
    assert [episode.task.task_id for episode in stage.watcher.finished] == ["a", "c", "d"]


def test_the_loss_is_the_cross_entropy_of_the_assistants_tokens(renderer: Renderer, tiny_folder: Path) -> None:
    answers = ["It is 3.", "Twelve, if I am not mistaken, and no more than that."]
    episodes = [shown(renderer, task(f"t{i}", answer=answer)) for i, answer in enumerate(answers)]
    from astune.schema import EpisodeGroup

    groups = [EpisodeGroup(episode.task, [episode]) for episode in episodes]
    config = AstuneConfig.model_validate(
        {"model": {"device": "cpu", "dtype": "float32"}, "trainer": {"algorithm": "sft", "optim": {"warmup_steps": 0}}}
    )
    trainer = PolicyTrainer.load(tiny_folder, config)
    assert isinstance(trainer.algorithm, Supervised)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    losses = []
    for episode in episodes:
        [timeline] = episode.timelines
        ids = torch.tensor([timeline.token_ids])
        start = next(span.start for span in timeline.spans if span.sampled)
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, start - 1 : -1].log_softmax(-1)
        losses += (-logprobs.gather(1, ids[0, start:, None])[:, 0]).tolist()
    report = trainer.step(TrainingBatch(1, groups, advantages_of(trainer.algorithm, groups)))
    assert report.metrics["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert report.trained_tokens == len(losses)
    assert report.metrics["importance_mean"] == 1.0
    assert report.metrics["weights_version"] == 0
    assert not [name for name in report.metrics if name.startswith(("versions_behind", "engine_", "logprob_diff"))]
    assert all(math.isfinite(value) for value in report.metrics.values())
