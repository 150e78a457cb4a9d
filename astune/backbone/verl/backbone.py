"""The verl backbone as astune's own process sees it. Imports nothing of verl."""

from __future__ import annotations

from typing import ClassVar

from astune.algorithm import Algorithm, token_loss_is_clipped
from astune.backbone.cluster.backbone import ClusterBackbone, Refusal
from astune.backbone.memory import Estimate, ModelShape, colocated_memory
from astune.config.schema import AstuneConfig, ClusterEngine


class VerlBackbone(ClusterBackbone):
    """Training with verl."""

    engine: ClassVar[ClusterEngine] = "verl"

    def check_algorithm(self, config: AstuneConfig, algorithm: Algorithm) -> None:
        super().check_algorithm(config, algorithm)
        why = f"verl's own loss is PPO's clipped one, and {config.trainer.algorithm.type} has another"
        value = "grpo, dr_grpo, rloo or dapo, or train with local or trinity"
        self._require("trainer.algorithm", Refusal(not token_loss_is_clipped(algorithm), why, value))

    def memory(self, config: AstuneConfig, shape: ModelShape, *, on_gpu: bool, in_bfloat16: bool) -> list[Estimate]:
        devices = int(self.number(config, "trainer.n_gpus_per_node", 1) * self.number(config, "trainer.nnodes", 1))
        share = self.number(config, "actor_rollout_ref.rollout.gpu_memory_utilization", 0.5)
        return colocated_memory(config, shape, devices=devices, sampler_share=share, on_gpu=on_gpu)
