"""verl's agent loop workers, which run groups of episodes as every backbone runs them.

A row of verl's batch is a task, whose episodes are run, judged and compared here; what verl gets are the timelines
that are trained.
"""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

import logging
from typing import Any

import orjson
import ray
import torch
import transfer_queue as tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from astune.backbone.cluster.groups import Groups
from astune.backbone.cluster.hooks import hook, hooks, replace
from astune.backbone.cluster.room import Room
from astune.backbone.cluster.rows import Row
from astune.backbone.verl import estimator
from astune.backbone.verl.engine import VerlEngine
from astune.backbone.verl.names import step_of
from astune.rollout.setting import num_repeat_of
from astune.schema import Split

_log = logging.getLogger(__name__)
PARTITIONS: dict[Split, str] = {"train": "train", "validation": "val"}
"""verl's names."""


@hooks
class Worker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """Runs groups, as many at once as the configuration has room for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        n_workers = self.config.actor_rollout_ref.rollout.agent.num_workers
        self._groups = Groups(token_id=self.tokenizer.eos_token_id, n_processes=n_workers, servers_rest=True)
        self._room = Room(self._groups.config.rollout.max_env_worker)

    @hook
    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: Any, trajectory: Any, trace: Any = None
    ) -> None:
        """A group, from its task to its rows. `failure` is what verl calls one that has none."""
        uid = prompt["uid"]
        split: Split = "validation" if trajectory["validate"] else "train"
        step = step_of(uid) if split == "train" else int(trajectory["step"])
        partition = PARTITIONS[split]
        await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": "running"})
        status = "failure"
        try:
            async with self._room.taken(num_repeat_of(self._groups.config, split)):
                engine = VerlEngine(self.llm_client, max_model_len=self._groups.config.rollout.max_model_len)
                rows = await self._groups.run(
                    engine,
                    orjson.loads(prompt["astune_task"]),
                    uid=uid,
                    split=split,
                    step=step,
                    first_repeat=int(prompt["astune_first_repeat"]),
                )
            await self._put(rows, uid, partition, step)
            status = "finished"
        except Exception as error:
            _log.exception("the group %s failed", uid)
            await self._groups.failed_by(error)
        finally:
            await tq.async_kv_put(key=uid, partition_id=partition, tag={"status": status})

    async def _put(self, rows: list[Row], uid: str, partition: str, step: int) -> None:
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
        replace(self, "agent_loop_workers_class", ray.remote(Worker))


def fields_of(row: Row, uid: str) -> dict[str, Any]:
    prompts, responses = torch.tensor(row.prompt_ids), torch.tensor(row.response_ids)
    mask, advantages = torch.tensor(row.mask), torch.tensor(row.advantages, dtype=torch.float32)
    input_ids = torch.cat([prompts, responses])
    return {
        "uid": estimator.group_name(uid, row),
        "prompts": prompts,
        "responses": responses,
        "input_ids": input_ids,
        "position_ids": torch.arange(len(input_ids)),
        "response_mask": mask,
        "loss_mask": mask,
        "rollout_log_probs": torch.tensor(row.logprobs, dtype=torch.float32),
        "rm_scores": advantages * row.token_weight,
        "token_weights": mask * torch.tensor(row.token_weight, dtype=torch.float32),
        "num_turns": len(row.messages),
        "multi_modal_inputs": {},
        "extra_fields": {},
        "astune_row": orjson.dumps(row.origin()).decode(),
    }


def _tag(row: Row, step: int) -> dict[str, Any]:
    prompt_len, response_len = len(row.prompt_ids), len(row.response_ids)
    return {
        "status": "success",
        "quiet": not row.episode_id,
        "n_trained": sum(row.mask),
        "prompt_len": prompt_len,
        "response_len": response_len,
        "seq_len": prompt_len + response_len,
        "global_steps": step,
        "min_global_steps": min(row.versions),
        "max_global_steps": max(row.versions),
    }
