"""vLLM's worker on a CPU that takes weights from Trinity's checkpoints, without a process group of GPUs.

vLLM imports it as `trinity.common.models.vllm_worker`; `trinity_on_cpu.py` says so.
"""

# pyright: reportMissingImports=false
# Trinity is in an environment of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
from trinity.common.models.utils import load_state_dict_iterator
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.v1.worker.cpu_worker import CPUWorker


@dataclass
class CheckpointWeightTransferInitInfo(WeightTransferInitInfo):
    """Group description that Trinity sends."""

    master_address: str = ""
    master_port: int = 0
    rank_offset: int = 0
    world_size: int = 1
    sync_method: str = "checkpoint"
    namespace: str = ""


@dataclass
class CheckpointWeightTransferUpdateInfo(WeightTransferUpdateInfo):
    """Location of the weights."""

    checkpoint_path: str | None = None


class CheckpointWeightTransferEngine(WeightTransferEngine[Any, Any]):
    """Reads a checkpoint, or what the synchronizer has in memory, into the one worker of a model."""

    init_info_cls = CheckpointWeightTransferInitInfo
    update_info_cls = CheckpointWeightTransferUpdateInfo

    def init_transfer_engine(self, init_info: CheckpointWeightTransferInitInfo) -> None:
        if init_info.world_size != 1:
            raise ValueError(f"on a CPU a model has one worker, and {init_info.world_size} were asked for")
        self._init_info = init_info

    def start_weight_update(self) -> None: ...

    def finish_weight_update(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: CheckpointWeightTransferUpdateInfo) -> None:
        self.model.load_weights(self._weights(update_info))

    def shutdown(self) -> None: ...

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        raise NotImplementedError("weights come from a checkpoint")

    def _weights(self, update_info: CheckpointWeightTransferUpdateInfo) -> Any:
        if self._init_info.sync_method == "checkpoint":
            return load_state_dict_iterator(update_info.checkpoint_path)
        from trinity.manager.synchronizer import Synchronizer

        synchronizer = Synchronizer.get_actor(namespace=self._init_info.namespace)
        return (ray.get(weight) for weight in synchronizer.get_model_state_dict_iterator.remote())


class TrinityGPUWorker(CPUWorker):
    """Method under the name that Trinity calls."""

    def apply_patches(self) -> None:
        """Trinity's are for mixtures of experts and for the log-probabilities of prompts."""

    def load_model(self, *arguments: Any, **named: Any) -> None:
        if "checkpoint" not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(
                "checkpoint", "astune.backbone.cpu_clusters.trinity_worker", CheckpointWeightTransferEngine.__name__
            )
        super().load_model(*arguments, **named)
