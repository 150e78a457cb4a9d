"""Engines that are wrong in one way each, and the check that is run against them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from engine_helpers import own_logprobs, transformers_model
from torch import Tensor

from astune import AstuneProxy, Task, Workflow, WorkflowOutput
from astune.backbone.local import without_learning
from astune.config.schema import AstuneConfig, ModelConfig
from astune.engine.base import WeightsSource
from astune.engine.local.in_process import InProcessEngine
from astune.numerics.check import NumericsCheck, NumericsReport
from astune.renderers import load_renderer
from astune.rollout import RolloutPool
from astune.schema import Completion, SamplingParams
from astune.task_reader import TaskOrder
from astune.trainer.policy import PolicyTrainer

TASKS = [Task(task_id=f"task-{number}", main_query=f"How much is {number} and {number}?") for number in range(40)]


class TwoTurns(Workflow):
    """Two calls below a system message, rewarded by chance."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        asked = [{"role": "system", "content": "You are a parrot."}, *proxy.init_messages]
        first = await proxy.achat(asked)
        second = await proxy.achat([*asked, first, {"role": "user", "content": "And again?"}])
        return WorkflowOutput(reward=float(len(first["content"] + second["content"]) % 2))


class OneInForm(Workflow):
    """A free answer, and one that has to be a number."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        first = await proxy.achat(proxy.init_messages)
        again = [*proxy.init_messages, first, {"role": "user", "content": "As a number?"}]
        number = await proxy.achat(again, response_format={"type": "regex", "regex": "[0-9]{1,8}"})
        return WorkflowOutput(reward=float(len(number["content"]) % 2))


class AllInForm(Workflow):
    """One answer, which has to be a number."""

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        number = await proxy.achat(proxy.init_messages, response_format={"type": "regex", "regex": "[0-9]{1,8}"})
        return WorkflowOutput(reward=float(len(number["content"]) % 2))


class Wrapped:
    """An engine that passes everything on; the others below change one thing."""

    def __init__(self, inner: InProcessEngine) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        return await self.inner.generate(prompt_ids, params, session=session)

    async def load_weights(self, source: WeightsSource) -> int:
        return await self.inner.load_weights(source)


class OtherParams(Wrapped):
    """Samples otherwise than it was asked to, and records what it sampled from."""

    def __init__(self, inner: InProcessEngine, **params: Any) -> None:
        super().__init__(inner)
        self.params = params

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        return await super().generate(prompt_ids, replace(params, **self.params), session=session)


class RecordsWithout(OtherParams):
    """Samples with `params`, and records the probabilities that the plain model gives at temperature 1."""

    def __init__(self, inner: InProcessEngine, folder: Path, **params: Any) -> None:
        super().__init__(inner, **params)
        self.model = transformers_model(folder)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        completion = await super().generate(prompt_ids, params, session=session)
        return replace(completion, logprobs=own_logprobs(self.model, list(prompt_ids), completion).tolist())

    async def load_weights(self, source: WeightsSource) -> int:
        self.model.load_state_dict({name: tensor.float() for name, tensor in source.named_tensors()}, strict=False)
        return await super().load_weights(source)


class Stale(Wrapped):
    """Takes no new weights; says so, or not."""

    def __init__(self, inner: InProcessEngine, *, lies: bool) -> None:
        super().__init__(inner)
        self.lies = lies
        self.version = 0

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        completion = await super().generate(prompt_ids, params, session=session)
        return replace(completion, weights_version=self.version) if self.lies else completion

    async def load_weights(self, source: WeightsSource) -> int:
        self.version = source.version
        return source.version


class OldLabel(Wrapped):
    """Takes new weights and goes on to call them version 0."""

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        return replace(await super().generate(prompt_ids, params, session=session), weights_version=0)


class OldHead(Wrapped):
    """A model whose head is a tensor of its own, which new weights do not reach."""

    def __init__(self, inner: InProcessEngine, head: Tensor) -> None:
        super().__init__(inner)
        self.head = head

    async def load_weights(self, source: WeightsSource) -> int:
        return await super().load_weights(_WithHead(source, self.head))


class _WithHead:
    def __init__(self, source: WeightsSource, head: Tensor) -> None:
        self.source = source
        self.head = head
        self.version = source.version

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.source.named_tensors()
        yield "lm_head.weight", self.head


class OtherPrompt(Wrapped):
    """Reads another prompt than it was given."""

    def __init__(self, inner: InProcessEngine, change: Callable[[list[int]], list[int]]) -> None:
        super().__init__(inner)
        self.change = change

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        return await super().generate(self.change(list(prompt_ids)), params, session=session)


class Noisy(Wrapped):
    """Records numbers that are wrong without any system."""

    random = random.Random(0)

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        completion = await super().generate(prompt_ids, params, session=session)
        return replace(completion, logprobs=[value - self.random.random() for value in completion.logprobs])


async def check(
    folder: Path,
    broken: Callable[[InProcessEngine], Any] = Wrapped,
    *,
    dtype: str = "float32",
    engine_dtype: str | None = None,
    engine_folder: Path | None = None,
    temperature: float = 1.0,
    lora: int = 0,
    steps: int = 2,
    tasks: int = 4,
    max_tokens: int = 12,
    workflow: type[Workflow] = TwoTurns,
) -> NumericsReport:
    """Check the trainer of `folder` against an engine that is wrapped by `broken`."""
    config = without_learning(
        AstuneConfig.model_validate(
            {
                "model": {"device": "cpu", "dtype": dtype, "lora": {"rank": lora}},
                "engine": {"kv_cache_gb": 0.1},
                "rollout": {
                    "num_repeat": 4,
                    "max_model_len": 512,
                    "max_response_length_in_one_turn": max_tokens,
                    "temperature": temperature,
                },
            }
        )
    )
    model = ModelConfig.model_validate({"device": "cpu", "dtype": engine_dtype or dtype})
    inner = InProcessEngine.load(
        engine_folder or folder, model=model, engine=config.engine, max_model_len=config.rollout.max_model_len
    )
    engine = broken(inner)
    policy = PolicyTrainer.load(folder, config)
    before = {name: tensor.clone() for name, tensor in policy.named_tensors()}
    numerics = NumericsCheck(
        config,
        policy=policy,
        engine=engine,
        rollouts=RolloutPool(engine, load_renderer(folder), workflow, None, config),
        order=TaskOrder(TASKS, seed=0, stratify_by=None),
        folder=folder,
        on_phase=lambda phase: None,
    )
    try:
        report = await numerics.run(steps=steps, tasks=tasks)
    finally:
        await inner.aclose()
    if steps == 1:  # zero learning rate; later steps are moved on purpose
        assert all(torch.equal(before[name], tensor) for name, tensor in policy.named_tensors())
    return report
