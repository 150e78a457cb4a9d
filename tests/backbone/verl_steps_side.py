"""Steps of verl's own worker and of the local trainer, from one model on; runs in verl's environment.

{"folder", "keys": {...}, "port"}  ->  {
    "steps": [{"grad_norm": [local, verl], "lr": verl's, "distance": of the two models' weights}, ...],
    "resumed": rates of the next step, of a worker that loaded a checkpoint and is configured with half the rate:
        as loaded, and as followed
}
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {
    "VERL_USE_EXTERNAL_MODULES": "astune.backbone.cpu_clusters.verl_on_cpu",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "MASTER_ADDR": "127.0.0.1",
} | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1")
os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), "0")

import numpy as np
import torch
from cluster_stage import recorded, told_rows
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_from_nested, response_to_nested

from astune.algorithm import GRPO, advantages_of
from astune.backbone.cluster.job import Job, StepsToCome
from astune.backbone.cluster.rates import rate, set_base_rate
from astune.backbone.cluster.rows import BatchScale, Row
from astune.backbone.verl import estimator
from astune.backbone.verl.loss import SCALE, loss_of
from astune.backbone.verl.settings import verl_config
from astune.backbone.verl.workers import fields_of
from astune.config.schema import AstuneConfig
from astune.schema import Task, TrainingBatch
from astune.trainer.policy import PolicyTrainer

_READ = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask")
_FIRST_ID = 20
"""The ids before it are special tokens of the model's."""


class Workers:
    """verl's actor and reference model, as a run with this configuration has them."""

    def __init__(self, config: AstuneConfig, made: DictConfig) -> None:
        self._config, self._made = config, made
        self._scheme = GRPO.token_weights
        self._reference = self._begun("ref")
        self.actor = self._begun("actor")
        self.actor.set_loss_fn(loss_of(made.actor_rollout_ref.actor, config.trainer.loss))
        estimator.register(self._scheme)

    def resumed(self) -> list[float]:
        """Rates of a worker with half the rate that loads what this one saves."""
        self._made.actor_rollout_ref.actor.optim.lr /= 2
        other = self._begun("actor")
        with tempfile.TemporaryDirectory() as folder:
            self.actor.save_checkpoint(folder)
            other.load_checkpoint(folder)
        rates = [rate(other.actor.engine)]
        set_base_rate(other.actor.engine)
        return [*rates, rate(other.actor.engine)]

    def _begun(self, role: str) -> Any:
        worker = ActorRolloutRefWorker(self._made.actor_rollout_ref.copy(), role)
        worker.init_model()
        return worker

    def step(self, told: list[tuple[str, Row]]) -> float:
        """The norm of the gradient; a step of verl's trainer, without its processes and its queue."""
        fields = [fields_of(row, uid) for uid, row in told]
        padding, _ = construct_minimal_padding_template(fields[0], {}, _FIRST_ID)
        fields.append(padding | {"uid": f"{estimator.PADDING}0"})
        names = [*_READ, "rm_scores", "rollout_log_probs", "token_weights"]
        columns = {
            name: torch.nested.as_nested_tensor([one[name] for one in fields], layout=torch.jagged) for name in names
        }
        data = TensorDict(columns, batch_size=len(fields))
        mask = data["response_mask"]
        computed = self._of(self.actor.compute_log_prob, data)
        data["old_log_probs"] = response_from_nested(computed["log_probs"], mask)
        compared = self._of(self._reference.compute_ref_log_prob, data)
        data["ref_log_prob"] = response_from_nested(compared["log_probs"], mask)
        padded = DataProto(batch=data.exclude(*_READ[:4], "loss_mask").to_padded_tensor())
        padded.batch["token_level_rewards"] = padded.batch["rm_scores"]
        padded.non_tensor_batch["uid"] = np.array([one["uid"] for one in fields], dtype=object)
        padded, _ = compute_rollout_correction_and_add_to_batch(padded, self._made.algorithm.rollout_correction)
        keys = [f"{one['uid']}_{number}_0" for number, one in enumerate(fields)]
        padded = compute_advantage_for_multi_trajectories(padded, keys, estimator.NAME, config=self._made.algorithm)
        for name in ("advantages", "rollout_is_weights"):
            data[name] = response_to_nested(padded.batch[name], mask)
        taught = [(uid, sum(row.mask), True) for uid, row in told if row.episode_id]
        updated = {
            "temperature": self._made.actor_rollout_ref.rollout.temperature,
            "calculate_entropy": self._made.actor_rollout_ref.actor.calculate_entropy,
            "global_batch_size": len(fields),
            "mini_batch_size": len(fields),
            SCALE: BatchScale.count(taught).of_weights(self._scheme),
        }
        tu.assign_non_tensor(data, **updated)
        [norm] = tu.get(self.actor.update_actor(data), "metrics")["grad_norm"]
        return norm

    def _of(self, compute: Any, data: TensorDict) -> Any:
        read = data.select(*_READ)
        temperature = self._made.actor_rollout_ref.rollout.temperature
        tu.assign_non_tensor(read, compute_loss=False, calculate_entropy=True, temperature=temperature)
        return compute(read)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: weight.full_tensor() for name, weight in self.actor.actor.engine.module.state_dict().items()}


def main() -> None:
    said = json.load(sys.stdin)
    os.environ["MASTER_PORT"] = str(said["port"])
    folder, config = Path(said["folder"]), AstuneConfig.model_validate(said["keys"])
    steps = config.trainer.total_steps
    job = Job("verl", config, None, folder, StepsToCome([[Task("1", "?")]], [{}]), [], Path("/run/verl"))
    made = verl_config(job.work_order(), on_cpu=True)
    made.actor_rollout_ref.actor.optim.total_training_steps = steps  # as verl's trainer sets it
    batch = recorded()
    episodes = [episode for group in (*batch.used, *batch.quiet) for episode in group.episodes]
    for number, episode in enumerate(episodes):
        episode.episode_id = f"episode {number}"
    for node in {id(node): node for episode in episodes for node in episode.forest.nodes}.values():
        node.token_ids = [token + _FIRST_ID for token in node.token_ids]
    told, local = told_rows(batch, GRPO.token_weights), PolicyTrainer.load(folder, config)
    workers = Workers(config, made)
    answers: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        trained = TrainingBatch(step, batch.used, advantages_of(GRPO(), batch.used), flat=batch.quiet)
        lr = rate(workers.actor.actor.engine)
        norms = [local.step(trained).metrics["grad_norm"], workers.step(told)]
        theirs = workers.weights()
        distances = [float((own - theirs[name]).abs().max()) for name, own in local.named_tensors()]
        answers.append({"grad_norm": norms, "lr": lr, "distance": max(distances)})
    sys.stdout.write(f"\n{json.dumps({'steps': answers, 'resumed': workers.resumed()})}\n")


main()
