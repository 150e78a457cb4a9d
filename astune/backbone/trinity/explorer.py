"""Trinity's explorer: what it ran and measured is reported to the run server, which answers when it is enough."""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import trinity.explorer.explorer as trinity_explorer
from trinity.common.constants import SyncStyle

from astune.backbone.cluster.actors import watch
from astune.backbone.cluster.hooks import hook, hooks, replace
from astune.backbone.cluster.messages import BatchExplored, PhaseBegan, TasksMeasured, WeightsSynced
from astune.backbone.cluster.reports import reports
from astune.backbone.trinity.coordinator import Coordinator
from astune.backbone.trinity.reporting import reporting_failures
from astune.schema import DeadlineExceeded

_LOOKS_S = 0.5


@hooks
class ReportingExplorer(trinity_explorer.Explorer):
    """Runs no further ahead of the trainer than `trainer.max_staleness`.

    It measures held-out tasks with the weights of the last step, and of each `test_freq`-th that its models are given.
    """

    def __init__(self, config: Any) -> None:
        self._reports = reports()
        order = self._reports.work_order()
        trainer = order.config.trainer
        self._test_freq, self._last_step = trainer.test_freq, trainer.total_steps
        self._max_staleness = trainer.max_staleness
        self._done, self._measured = order.done, order.measured
        self._end_watch: Callable[[], None] = lambda: None
        self._measured_last = not order.validation or self._measured >= self._last_step
        replace(trinity_explorer, "RolloutCoordinator", Coordinator)
        super().__init__(config)
        self.explore_step_num = self.last_monitored_step = self._done
        self.sync_offset += self._done  # a resumed run may run ahead by as much again

    @hook
    @reporting_failures
    async def prepare(self) -> None:
        await super().prepare()
        self._end_watch = watch({f"server {n}": each.model for n, each in enumerate(self.models)})

    @hook
    async def shutdown(self) -> None:
        self._end_watch()
        await super().shutdown()

    @hook
    @reporting_failures
    async def explore_step(self) -> bool:
        if self.explore_step_num >= self._last_step:
            await self._measure_last_weights()
            self.taskset = _NoMoreTasks()
        else:
            await self._wait_for_trainer(at_least=self.explore_step_num - self._max_staleness)
        await asyncio.to_thread(self._reports.send, PhaseBegan(name="rollout"))
        return await super().explore_step()

    async def _measure_last_weights(self) -> None:
        if self._measured_last:
            return
        self._measured_last = True
        await self.finish_current_steps()
        await self._wait_for_trainer(at_least=self._last_step)
        await self.eval()
        await self._finish_eval_step(step=self.explore_step_num)

    async def _wait_for_trainer(self, *, at_least: int) -> None:
        """Wait until the models have the weights of a step; at Trinity's own pace that is only at the end."""
        within = self.config.synchronizer.sync_timeout
        try:
            async with asyncio.timeout(within):
                while self.model_version < at_least:
                    if self.sync_style == SyncStyle.FULLY_ASYNC:  # they are given them as they come
                        await asyncio.sleep(_LOOKS_S)
                    else:
                        await self.sync_weight()
        except TimeoutError as cause:
            raise DeadlineExceeded(
                f"the models did not get the weights of step {at_least} within {within} s",
                hint="raise rollout.step_timeout_s if a step takes longer",
            ) from cause

    @hook
    @reporting_failures
    async def sync_weight(self) -> None:
        """Load the newest weights into the models; where weights are pushed to them, wait for the first ones."""
        if self.sync_style == SyncStyle.FULLY_ASYNC:
            await self._wait_for_trainer(at_least=self._done)
            return
        await self._wait_for_first_weights()
        await super().sync_weight()

    @hook
    @reporting_failures
    async def _pull_latest_weights(self) -> None:
        await super()._pull_latest_weights()
        await self._report_loaded_weights()

    @hook
    @reporting_failures
    async def _nccl_weights_update(self) -> None:
        await super()._nccl_weights_update()
        await self._report_loaded_weights()

    async def _report_loaded_weights(self) -> None:
        """Report that the models loaded weights, and what each answers to a fixed text now."""
        answers = await asyncio.gather(*(_answer_to_text(model) for model in self.models))
        servers = {f"server {number}": answer for number, answer in enumerate(answers)}
        await asyncio.to_thread(self._reports.send, WeightsSynced(version=self.model_version, servers=servers))

    async def _wait_for_first_weights(self) -> None:
        """Weights at a resume: the initial ones, until the trainer has published its own."""
        version = self.model_version
        async with asyncio.timeout(self.config.synchronizer.sync_timeout):
            while version < self._done:
                await asyncio.sleep(_LOOKS_S)
                version = await self.synchronizer.get_latest_model_version.remote()

    @hook
    @reporting_failures
    async def finish_current_steps(self) -> None:
        await super().finish_current_steps()

    @hook
    async def eval(self) -> None:
        self._measured = max(0, self.model_version)
        await super().eval()

    @hook
    def need_eval(self) -> bool:
        """While a step is run, the models have the weights of those before it."""
        return self.model_version > self._measured and self.model_version % self._test_freq == 0

    @hook
    @reporting_failures
    async def _finish_explore_step(self, step: int) -> None:
        await super()._finish_explore_step(step)
        await asyncio.to_thread(self._reports.send, BatchExplored(batch=step))

    @hook
    async def _finish_eval_step(self, step: int | None = None, prefix: str = "eval") -> None:
        number = step or self.explore_step_num
        waiting = bool(self.pending_eval_tasks) and self.pending_eval_tasks[0][0] == number
        began = self.eval_start_time or time.time()
        await super()._finish_eval_step(step, prefix)
        if not waiting:
            return
        seconds, version = time.time() - began, max(0, self.model_version)
        answer = await asyncio.to_thread(self._reports.send, TasksMeasured(step=version, seconds=seconds))
        if answer.enough:
            self._measured_last = True
            self.taskset = _NoMoreTasks()


async def _answer_to_text(model: Any) -> list[float]:
    """A model's greedy answer to a fixed text, with its log-probabilities, as numbers."""
    [answer] = await model.generate_async(["Weights are"], temperature=0.0, max_tokens=8, logprobs=0)
    return [*map(float, answer.tokens.tolist()), *answer.logprobs.tolist()]


class _NoMoreTasks:
    """The end of a run, as Trinity's explorer takes it."""

    async def read(self) -> list[Any]:
        raise StopAsyncIteration

    def state_dict(self) -> list[dict[str, Any]]:
        return []

    def feedback(self, pipeline_metrics: dict[str, Any]) -> None: ...
