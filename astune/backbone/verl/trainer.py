"""verl's trainers: what they trained, measured and saved is reported to the run server, which says when it is enough.

Every mode of verl's own (`trainer.v1.trainer_mode`) has a class here, registered as `astune_<mode>`.
"""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import numpy as np
import orjson
import ray
import transfer_queue as tq
from omegaconf import open_dict
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, get_trainer_cls, register_trainer
from verl.utils import tensordict_utils as tu

from astune.algorithm import TokenWeights, load_algorithm
from astune.backbone.cluster.actors import watch
from astune.backbone.cluster.hooks import hook, hooks, replace
from astune.backbone.cluster.messages import (
    CheckpointSaved,
    PhaseBegan,
    StepTrained,
    TasksMeasured,
    TrainedRow,
    WeightsSynced,
)
from astune.backbone.cluster.rates import follow_configuration, rate_of
from astune.backbone.cluster.reports import numbers_of, reports
from astune.backbone.cluster.rows import BatchScale
from astune.backbone.verl import estimator, loss
from astune.backbone.verl.names import MODES, PREFIX, QUEUE, group_of

_VALUES = ("old_log_probs", "rollout_log_probs", "entropy")
"""Values that verl computes of each trained token; with a KL term its `_START` too."""
_START = "ref_log_prob"
_PHASES = {"gen": "rollout", "old_log_prob": "train", "ref": "train", "adv": "train", "update_actor": "train"}
"""verl's clocks and ours."""
_NOT_REPORTED = (
    "training/rollout_",
    "rollout_corr/",
    "actor/entropy",
    "actor/kl_",
    "actor/pg_clipfrac",
    "actor/ppo_kl",
)
"""Measures of verl's that count the tokens of quiet rows; the run server makes its own, of trained tokens alone."""


@hooks
class ReportingTrainer(PPOTrainer):
    """Mixed into one of verl's trainers."""

    _mode: str

    def __init__(self, config: Any) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = self._mode
        self._reports = reports()
        self._synced_s, self._saved_step = 0.0, 0
        self._lr: float | None = None
        order = self._reports.work_order()
        self._done = self._n_begun = 0
        self._measured_steps: list[int] = order.measured_steps
        self._loss = order.config.trainer.loss
        self._token_weights: TokenWeights = load_algorithm(order.config, order.base_dir).token_weights
        estimator.register(self._token_weights)
        super().__init__(config)

    @hook
    def init(self) -> None:
        self._reports.send(PhaseBegan(name="loading the model"))
        super().init()
        own = loss.loss_of(self.config.actor_rollout_ref.actor, self._loss)
        if own is not None:
            self.actor_rollout_wg.set_loss_fn(own)

    @hook
    def fit(self, agent_loop_manager: Any) -> None:
        workers = {f"agent loop worker {n}": one for n, one in enumerate(agent_loop_manager.agent_loop_workers)}
        workers |= {f"trainer worker {n}": one for n, one in enumerate(self.actor_rollout_wg.workers)}
        for n, replica in enumerate(self._replicas()):
            workers |= {f"server {n}.{m}": one for m, one in enumerate(replica.servers)}
        end_watch = watch(workers | _queue())  # verl would wait for one that died for ever
        super().fit(agent_loop_manager)
        end_watch()

    def _replicas(self) -> list[Any]:
        """The servers that sample, and get weights at each step."""
        return getattr(self, "standalone_server_manager", self.llm_server_manager).get_replicas()

    @hook
    def on_init_end(self) -> None:
        super().on_init_end()
        self._report_loaded_weights()

    @hook
    def _load_checkpoint(self) -> None:
        """Repeat rollouts that were not trained, with the present weights."""
        super()._load_checkpoint()
        self._done = self._saved_step = self.global_steps
        self._n_begun = self._done * self.config.data.train_batch_size
        if self._done:
            follow_configuration(self.actor_rollout_wg.workers)
        replace(self, "_restored_tq_prompt_count", 0)
        for partition, items in (tq.kv_list() or {}).items():
            tq.kv_clear(keys=list(items), partition_id=partition)

    @hook
    def _fetch_one_gen_batch(self) -> Any:
        """The next tasks in astune's order, their groups named by the step that trains them."""
        per_step, n_tasks = self.config.data.train_batch_size, self.train_dataloader.batch_size
        numbers = range(self._n_begun, self._n_begun + n_tasks)
        first = self._done * per_step  # the dataset leaves out what an earlier process trained
        rows = self.train_dataloader.collate_fn([self.train_dataset[number - first] for number in numbers])
        rows["uid"] = np.array([group_of(number, per_step) for number in numbers], dtype=object)
        self._n_begun += n_tasks
        return tu.get_tensordict(rows)

    @hook
    def _add_prompts_to_generate(self, num_prompts: int) -> int:
        left = self.total_training_steps * self.config.data.train_batch_size - self._n_begun
        return super()._add_prompts_to_generate(min(num_prompts, left)) if left > 0 else 0

    @hook
    def _add_batch_to_generate(self) -> None:
        """Nothing, where the last steps' groups have been begun ahead."""
        self._add_prompts_to_generate(self.config.data.train_batch_size)

    @hook
    def on_sample_begin(self) -> None:
        self._reports.send(PhaseBegan(name="rollout"))
        super().on_sample_begin()

    @hook
    def on_sample_end(self) -> None:
        super().on_sample_end()
        self._reports.send(PhaseBegan(name="train"))

    @hook
    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """An update uses the whole batch, however many timelines it has: law 4's sum is over all of it."""
        return dp_size

    @hook
    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        self._lr = None
        if not any(map(_teaches, batch.tags)):
            return batch  # gradients of zero would still move weights, by their momentum
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.ppo_mini_batch_size = len(batch)
        taught = [
            (_group_of_row(key), tag["n_trained"], True)
            for key, tag in zip(batch.keys, batch.tags, strict=True)
            if _teaches(tag)
        ]
        self._lr = rate_of(self.actor_rollout_wg.workers)
        batch.extra_info[loss.SCALE] = BatchScale.count(taught).of_weights(self._token_weights)
        return super()._update_actor(batch, metrics)

    @hook
    def _validate(self) -> dict[str, float]:
        """Run the validation tasks; the run server counts their rewards, and answers when it is enough."""
        self._reports.send(PhaseBegan(name="validation"))
        began = time.perf_counter()
        for rows in self.val_dataloader:
            rows["uid"] = np.array(
                [f"held{self.global_steps}out{n}" for n in range(len(rows["raw_prompt"]))], dtype=object
            )
            batch = tu.get_tensordict(rows)
            tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
            tu.assign_non_tensor_data(batch, "validate", True)
            tags = [{"is_prompt": True, "status": "pending", "global_steps": self.global_steps}] * len(batch)
            tq.kv_batch_put(keys=list(rows["uid"]), partition_id="val", tags=tags)
            self.agent_loop_manager.generate_sequences(batch)
            sampled, _ = self.replay_buffer.sample(
                global_steps=self.global_steps, partition_id="val", batch_size=len(rows["uid"])
            )
            tq.kv_clear(keys=sampled.keys, partition_id=sampled.partition_id)
        answer = self._reports.send(TasksMeasured(step=self.global_steps, seconds=time.perf_counter() - began))
        if answer.enough:
            self.total_training_steps = self.global_steps
            self._save_checkpoint()
        return {"val/success": answer.success or 0.0}

    @hook
    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
        """Train one step; it is reported before its checkpoint, which the best model has to have."""
        batch = super().step(metrics, timing_raw)
        groups = {_group_of_row(key) for key, tag in zip(batch.keys, batch.tags, strict=True) if _real(tag)}
        trained = StepTrained(
            step=self.global_steps,
            groups=sorted(groups),
            rows=self._trained(batch),
            phases=_seconds(timing_raw) | {"sync": self._synced_s},
            metrics=numbers_of(metrics, without=_NOT_REPORTED),
            lr=self._lr,
        )
        self._reports.send(trained)
        if self.global_steps in self._measured_steps:
            self._save_checkpoint()
        return batch

    @hook
    def on_step_end(self) -> None:
        """The servers get the weights."""
        began = time.perf_counter()
        super().on_step_end()
        self._synced_s = time.perf_counter() - began
        self._report_loaded_weights()

    def _report_loaded_weights(self) -> None:
        """Report that the servers loaded weights, and what each answers to a fixed text now."""
        prompt_ids = self.tokenizer.encode("Weights are")
        asked = [
            replica.servers[0].generate.remote(
                request_id=uuid4().hex,
                prompt_ids=prompt_ids,
                sampling_params={"temperature": 0.0, "max_tokens": 8, "logprobs": True},
            )
            for replica in self._replicas()
        ]
        answers = {f"server {n}": [*one.token_ids, *one.log_probs] for n, one in enumerate(ray.get(asked))}
        self._reports.send(WeightsSynced(version=self.global_steps, servers=answers))

    def _trained(self, batch: Any) -> list[TrainedRow]:
        """Return the values that verl computed of each trained token, with its episode and messages."""
        teaching = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if _teaches(tag)]
        if not teaching:
            return []
        names = [*_VALUES, *([_START] if self._loss.kl_coef else [])]
        fields = ["response_mask", "astune_row", *names]
        data = tq.kv_batch_get(keys=teaching, partition_id=batch.partition_id, select_fields=fields)
        rows: list[TrainedRow] = []
        for number, origin in enumerate(data["astune_row"]):
            mask = data["response_mask"][number].bool()
            values = {name: data[name][number][mask].double().tolist() for name in names}
            rows.append(TrainedRow.model_validate(orjson.loads(origin) | values))
        return rows

    @hook
    def _save_checkpoint(self) -> None:
        if self.global_steps == self._saved_step:
            return
        super()._save_checkpoint()
        self._saved_step = self.global_steps
        folder = os.path.join(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}")
        dtype = str(self.config.actor_rollout_ref.rollout.dtype)
        self._reports.send(CheckpointSaved(step=self.global_steps, folder=os.path.abspath(folder), dtype=dtype))


def _queue() -> dict[str, Any]:
    """The processes that keep verl's queue: the controller, and storage units in the job's own namespace."""
    units = [name for name in ray.util.list_named_actors() if name.startswith("TransferQueue")]
    return {"queue": ray.get_actor(**QUEUE)} | {f"queue's {name}": ray.get_actor(name) for name in units}


def _group_of_row(key: str) -> str:
    """`workers.py` names rows so."""
    return key.rsplit("_", 2)[0]


def _real(tag: Mapping[str, Any]) -> bool:
    return not tag.get("is_padding", False)


def _teaches(tag: Mapping[str, Any]) -> bool:
    return _real(tag) and not tag["quiet"]


def _seconds(timing_raw: Mapping[str, float]) -> dict[str, float]:
    phases: dict[str, float] = {}
    for clock, phase in _PHASES.items():
        phases[phase] = phases.get(phase, 0.0) + timing_raw.get(clock, 0.0)
    return phases


def register() -> None:
    """Make the trainers known to verl in this process."""
    for mode in MODES:
        register_trainer(PREFIX + mode)(
            type(f"Astune_{mode}", (ReportingTrainer, get_trainer_cls(mode)), {"_mode": mode})
        )
