"""verl's agent loop workers, which run groups of episodes as every backbone runs them.

A row of verl's batch is a task, whose episodes are run, judged and compared here; what verl gets are the timelines
that are trained. Everything that happened is told to the run's keeper before verl hears that the group is done, so
what is trained is always recorded.
"""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import ray
import torch
import transfer_queue as tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from astune.backbone.cluster.reports import ReportingObserver, reports
from astune.backbone.cluster.rows import Row, quiet_row, rows_of
from astune.backbone.parts import load_parts
from astune.backbone.verl import estimator
from astune.backbone.verl.engine import VerlEngine
from astune.config.schema import AstuneConfig
from astune.context_tracker import load_renderer
from astune.rollout import RolloutPool
from astune.schema import EpisodeGroup, Split, Task
from astune.trainer.advantages import advantages_of, teaches_nothing
from astune.trainer.local import NO_VARIANCE

_log = logging.getLogger(__name__)
PARTITIONS: dict[Split, str] = {"train": "train", "validation": "val"}
"""verl's names."""


class Worker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """Runs groups, as many at once as the configuration has room for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._reports = reports()
        job = self._reports.job()
        self._astune = AstuneConfig.model_validate(job["config"])
        base_dir = Path(job["base_dir"]) if job["base_dir"] is not None else None
        self._parts = load_parts(self._astune, base_dir, with_tasks=False)
        self._renderer = load_renderer(Path(job["model_folder"]), self._astune.model.path)
        self._room: dict[Split, asyncio.Semaphore] = {
            "train": self._room_for(self._astune.rollout.num_repeat),
            "validation": self._room_for(self._astune.trainer.validation.num_repeat),
        }

    def _room_for(self, num_repeat: int) -> asyncio.Semaphore:
        """For as many groups as this worker's part of `max_env_worker` has episodes for."""
        n_workers = self.config.actor_rollout_ref.rollout.agent.num_workers
        return asyncio.Semaphore(max(1, self._astune.rollout.max_env_worker // (num_repeat * n_workers)))

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: Any, trajectory: Any, trace: Any = None
    ) -> None:
        """One group, from its task to its rows. `failure` is what verl calls one that has none."""
        uid, step = prompt["uid"], int(trajectory["step"])
        split: Split = "validation" if trajectory["validate"] else "train"
        partition = PARTITIONS[split]
        await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": "running"})
        status = "failure"
        try:
            async with self._room[split]:
                rows = await self._group(prompt, uid, split, step)
            if rows:
                await self._put(rows, uid, partition, step, prompt)
                status = "finished"
        except Exception as error:
            _log.exception("the group %s failed", uid)
            await asyncio.to_thread(self._reports.tell, "failed", error=f"{type(error).__name__}: {error}")
        finally:
            await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": status})

    async def _group(self, prompt: dict[str, Any], uid: str, split: Split, step: int) -> list[Row]:
        config = self._astune
        engine = VerlEngine(self.llm_client, max_model_len=config.rollout.max_model_len)
        parts, observer = self._parts, ReportingObserver(self._reports, split)
        pool = RolloutPool(engine, self._renderer, parts.workflow, parts.judge, config, observer)
        training = split == "train"
        [group] = await pool.run_groups(
            [Task(**orjson.loads(prompt["astune_task"]))],
            step=step,
            split=split,
            num_repeat=config.rollout.num_repeat if training else config.trainer.validation.num_repeat,
            temperature=config.rollout.temperature if training else config.validation_temperature,
            first_repeat=int(prompt["astune_first_repeat"]),
        )
        rows = self._rows(group, step) if training else [self._quiet(step)]
        await asyncio.to_thread(
            self._reports.tell,
            "group",
            uid=uid,
            split=split,
            task_id=group.task.task_id,
            episodes=[episode.episode_id for episode in group.episodes],
            failed=[episode.episode_id for episode in group.failed_attempts],
            dropped=group.dropped,
            stats=asdict(engine.stats()),
        )
        return rows

    def _rows(self, group: EpisodeGroup, step: int) -> list[Row]:
        """One that stands for it, of a group that teaches nothing or could not be completed: verl waits for each."""
        if group.dropped is not None:
            return [self._quiet(step, dropped=True)]
        loss = self._astune.trainer.loss
        [advantages] = advantages_of([group], normalise=loss.normalise_advantages)
        if teaches_nothing(advantages):
            group.dropped = NO_VARIANCE
            return [self._quiet(step)]
        return rows_of(group, advantages, loss.token_weights) or [self._quiet(step)]

    def _quiet(self, step: int, *, dropped: bool = False) -> Row:
        return quiet_row(self.tokenizer.eos_token_id, max(0, step - 1), dropped=dropped)

    async def _put(self, rows: list[Row], uid: str, partition: str, step: int, prompt: dict[str, Any]) -> None:
        """Into verl's queue, as its own agent loops put theirs."""
        await tq.async_kv_batch_put(
            keys=[f"{uid}_{number}_0" for number in range(len(rows))],
            fields=list_of_dict_to_tensordict([fields_of(row, uid) for row in rows]),
            tags=[_tag(row, step) for row in rows],
            partition_id=partition,
        )


class Manager(AgentLoopManagerTQ):
    """verl's, with our workers."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.agent_loop_workers_class = ray.remote(Worker)


def fields_of(row: Row, uid: str) -> dict[str, Any]:
    prompts, responses = torch.tensor(row.prompt_ids), torch.tensor(row.response_ids)
    mask = torch.tensor(row.mask)
    input_ids = torch.cat([prompts, responses])
    return {
        "uid": estimator.group_name(uid, dropped=row.dropped),
        "prompts": prompts,
        "responses": responses,
        "input_ids": input_ids,
        "position_ids": torch.arange(len(input_ids)),
        "response_mask": mask,
        "loss_mask": mask,
        "rollout_log_probs": torch.tensor(row.logprobs, dtype=torch.float32),
        "rm_scores": torch.tensor(row.rewards, dtype=torch.float32),
        "num_turns": len(row.messages),
        "multi_modal_inputs": {},
        "extra_fields": {},
        "astune_row": orjson.dumps(
            {"episode": row.episode_id, "messages": row.messages, "versions": row.versions}
        ).decode(),
    }


def _tag(row: Row, step: int) -> dict[str, Any]:
    prompt_len, response_len = len(row.prompt_ids), len(row.response_ids)
    return {
        "status": "success",
        "quiet": not row.episode_id,
        "prompt_len": prompt_len,
        "response_len": response_len,
        "seq_len": prompt_len + response_len,
        "global_steps": step,
        "min_global_steps": min(row.versions),
        "max_global_steps": max(row.versions),
    }
