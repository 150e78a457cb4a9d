"""Weights from verl's trainer to servers of their own where there is no NCCL: verl's `checkpoint_engine.backend: gloo`.

verl imports this file where `checkpoint_engine.custom_backend_module` names it; `../verl/settings.py` does so for
`separate_async` without a GPU.
"""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import orjson
import ray
import torch
from torch import Tensor
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

_torch: Any = torch.distributed
_WITHIN = timedelta(minutes=10)
_END = b"end"


@CheckpointEngineRegistry.register("gloo")
class Gloo(CheckpointEngine):
    """The trainer's first rank sends each tensor to all servers; what it is called and looks like goes through a store.

    Args:
        is_master: whether this is that rank.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._is_master = is_master
        self._rank = -1
        self._store: Any = None
        self._group: Any = None

    def prepare(self) -> tuple[str, int] | None:
        """Address on which the first rank listens."""
        if not self._is_master:
            return None
        host = ray.util.get_node_ip_address()
        self._store = _torch.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_WITHIN)
        return host, self._store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        def topology(ranks: list[int]) -> dict[str, list[Any]]:
            n = len(ranks)
            return {"rank": ranks, "world_size": [rollout_world_size + 1] * n, "address": [metadata[0]] * n}

        return topology([0] + [-1] * (actor_wg_world_size - 1)), topology([*range(1, rollout_world_size + 1)])

    def init_process_group(self, rank: int, world_size: int, address: tuple[str, int]) -> None:
        self._rank = rank
        if rank < 0:
            return
        self._store = self._store or _torch.TCPStore(*address, is_master=False, timeout=_WITHIN)
        self._group = _torch.ProcessGroupGloo(_torch.PrefixStore("gloo", self._store), rank, world_size, _WITHIN)

    def finalize(self) -> None:
        self._group = self._store = None

    async def send_weights(self, weights: Iterator[tuple[str, Tensor]], global_steps: int | None = None) -> None:
        """Every rank of the trainer makes whole tensors of its parts; the first one sends them."""
        number = 0
        for name, weight in weights:
            if self._rank == 0:
                whole = weight.detach().contiguous()
                dtype = str(whole.dtype).removeprefix("torch.")
                self._send(number, orjson.dumps({"name": name, "shape": [*whole.shape], "dtype": dtype}))
                await self._broadcast(whole)
                number += 1
        if self._rank == 0:
            self._send(number, _END)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Tensor]]:
        number = 0
        while (message := await asyncio.to_thread(self._receive, number)) != _END:
            tensor = orjson.loads(message)
            weight = torch.empty(tensor["shape"], dtype=getattr(torch, tensor["dtype"]))
            await self._broadcast(weight)
            yield tensor["name"], weight
            number += 1

    def _send(self, number: int, what: bytes) -> None:
        self._store.set(f"tensor {number}", what)

    def _receive(self, number: int) -> bytes:
        return self._store.get(f"tensor {number}")

    async def _broadcast(self, tensor: Tensor) -> None:
        await asyncio.to_thread(self._group.broadcast([tensor]).wait)
