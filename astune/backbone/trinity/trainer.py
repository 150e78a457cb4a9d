"""Trinity's trainer: what it trained and saved is reported to the run server."""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

import trinity.trainer.trainer as trinity_trainer
from trinity.common.constants import SyncMethod
from trinity.common.experience import Experience
from trinity.trainer.verl.trainer import VERLTrainer

from astune.algorithm import TokenWeights, load_algorithm
from astune.backbone.cluster.hooks import hook, hooks, replace
from astune.backbone.cluster.messages import Answer, CheckpointSaved, Message, PhaseBegan, StepTrained, TrainedRow
from astune.backbone.cluster.rates import follow_configuration, rate_of
from astune.backbone.cluster.reports import numbers_of, reports
from astune.backbone.trinity import verl_0_9
from astune.backbone.trinity.reporting import reporting_failures
from astune.backbone.trinity.samples import group_info, scaled, teaches

_VALUES = ("old_log_probs", "rollout_log_probs", "entropy")
_START = "ref_log_prob"
"""Only with a KL term."""
_NOT_REPORTED = ("critic/", "training/rollout_", "actor/entropy", "actor/final_loss")
"""Measures of Trinity's that would be taken for the run's: of rewards, which it is not given, of tokens that no loss
counts, and of a micro-batch. The run server makes its own, of trained tokens alone."""


@hooks
class KeepingEngine(VERLTrainer):
    """Keeps what was computed of each trained token, and takes a batch in one update however many timelines it has."""

    values: Mapping[str, Mapping[str, list[float]]] = {}
    """Values that the trainer computed of the last batch, by experience id."""
    lr: float | None = None
    """The learning rate of the last batch; None where it taught nothing."""

    def n_ranks(self) -> int:
        return self._get_dp_size()

    def skip(self) -> None:
        """Skip a step that teaches nothing: with gradients of zero, momentum would still move the weights."""
        self.global_steps += 1
        self.values, self.lr = {}, None

    @hook
    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        names, masks = [*_VALUES, *([_START] if _START in batch.batch else [])], batch.batch["response_mask"].bool()
        self.values = {
            str(row): {name: batch.batch[name][number][masks[number]].double().tolist() for name in names}
            for number, row in enumerate(batch.non_tensor_batch["unique_ids"])
        }
        self.config.actor.ppo_mini_batch_size = len(batch)
        self.lr = rate_of(self.actor_rollout_wg.workers)
        return super()._update_actor(batch, metrics)


@hooks
class ReportingTrainer(trinity_trainer.Trainer):
    """Trains the groups of one step at a time."""

    engine: KeepingEngine

    def __init__(self, config: Any) -> None:
        self._reports = reports()
        order = self._reports.work_order()
        self._scheme: TokenWeights = load_algorithm(order.config, order.base_dir).token_weights
        self._measured_steps: list[int] = order.measured_steps
        self._waited_s = self._synced_s = 0.0
        self._saved_step = order.done
        replace(trinity_trainer, "get_trainer_wrapper", KeepingEngine)
        verl_0_9.install()
        super().__init__(config)

    @hook
    @reporting_failures
    async def prepare(self) -> None:
        await super().prepare()
        if self.train_step_num:
            follow_configuration(self.engine.actor_rollout_wg.workers)

    @hook
    @reporting_failures
    async def _sample_data(self) -> Any:
        began = time.perf_counter()
        sampled = await super()._sample_data()
        self._waited_s = time.perf_counter() - began
        return sampled

    @hook
    @reporting_failures
    async def train_step(self, exps: list[Experience]) -> dict[str, Any]:
        await self._send_report(PhaseBegan(name="train"))
        began, teaching = time.perf_counter(), scaled(exps, self._scheme, n_ranks=self.engine.n_ranks())
        metrics: dict[str, Any] = {}
        if teaching:
            metrics = await super().train_step(teaching)
        else:
            self.engine.skip()
        phases = {"rollout": self._waited_s, "train": time.perf_counter() - began, "sync": self._synced_s}
        self._synced_s = 0.0
        trained = StepTrained(
            step=self.train_step_num,
            groups=sorted({group_info(one)["uid"] for one in exps}),
            rows=[
                TrainedRow.model_validate(group_info(one)["origin"] | self.engine.values[one.eid.uid])
                for one in exps
                if teaches(one)
            ],
            phases=phases,
            metrics=numbers_of(metrics, without=_NOT_REPORTED),
            lr=self.engine.lr,
        )
        await self._send_report(trained)
        return metrics

    @hook
    @reporting_failures
    async def sync_weight(self) -> dict[str, Any]:
        began = time.perf_counter()
        metrics = await super().sync_weight()
        self._synced_s = time.perf_counter() - began
        return metrics

    @hook
    def need_save(self) -> bool:
        """Save checkpoints also where weights are measured, for the best model."""
        return self.train_step_num in self._measured_steps or super().need_save()

    @hook
    @reporting_failures
    async def save_checkpoint(self, block_until_saved: bool = False, save_as_hf: bool = False) -> dict[str, Any]:
        """Save the whole model in Hugging Face format, which `export`, `chat` and `eval` read.

        Trinity's models would take these files, in the precision that the model was published in; so they are given
        the weights themselves first, as at every other step, and once: a second writer breaks the first one's file.
        """
        step = self.train_step_num
        if step == self._saved_step:
            return {}
        if self.sync_method == SyncMethod.CHECKPOINT:
            if step != self.last_sync_step:
                await self.engine.save_state_dict()
            await self.engine.wait_for_save()
        metrics = await super().save_checkpoint(block_until_saved=True, save_as_hf=True)
        self._saved_step = step
        folder = os.path.join(self.config.checkpoint_job_dir, f"global_step_{step}")
        dtype = self.config.explorer.rollout_model.dtype
        await self._send_report(CheckpointSaved(step=step, folder=folder, dtype=dtype))
        return metrics

    async def _send_report(self, message: Message) -> Answer:
        return await asyncio.to_thread(self._reports.send, message)
