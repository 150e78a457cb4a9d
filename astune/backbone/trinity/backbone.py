"""The Trinity-RFT backbone as astune's own process sees it. Imports nothing of Trinity."""

from __future__ import annotations

from typing import ClassVar

from astune.backbone.cluster.backbone import ClusterBackbone, Refusal
from astune.backbone.cluster.layers import of_user
from astune.backbone.memory import Estimate, ModelShape, separate_memory
from astune.config.schema import AstuneConfig, ClusterEngine


class TrinityBackbone(ClusterBackbone):
    """Training with Trinity-RFT."""

    engine: ClassVar[ClusterEngine] = "trinity"

    def refusals(self, config: AstuneConfig) -> dict[str, Refusal]:
        why = "Trinity's models take adapters from its checkpoints, which was not tried"
        lora = Refusal(config.model.lora.rank > 0, why, "0, or train with verl")
        return super().refusals(config) | {"model.lora.rank": lora}

    def unmeasured(self, config: AstuneConfig) -> str:
        """Trinity's explorer pauses to measure where it pauses to take weights."""
        style = of_user(config, self.engine, "synchronizer.sync_style")
        return "Trinity's fully_async has no moment for it" if style == "fully_async" else ""

    def memory(self, config: AstuneConfig, shape: ModelShape, *, on_gpu: bool, in_bfloat16: bool) -> list[Estimate]:
        gpus = self.number(config, "cluster.node_num", 1) * self.number(config, "cluster.gpu_per_node", 1)
        sampling = self.number(config, "explorer.rollout_model.engine_num", 1)
        sampling *= self.number(config, "explorer.rollout_model.tensor_parallel_size", 1)
        return separate_memory(config, shape, devices=max(1, int(gpus - sampling)), on_gpu=on_gpu)
