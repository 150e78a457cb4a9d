"""verl without a GPU: what verl 0.9.1 and vLLM 0.32 need to compute on a CPU.

verl imports this file in each of its processes where `VERL_USE_EXTERNAL_MODULES` names it; `../cluster/process.py` sets
that where there is no GPU. Other versions are refused, for what is changed here may mean something else in them.
"""

# pyright: reportMissingImports=false
# verl is in an environment of its own.

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from astune.backbone.cluster.hooks import after_import, require_versions
from astune.backbone.cpu_clusters.vllm_on_cpu import VLLM, keep_vllm_weights
from astune.backbone.verl.names import VERSIONS
from astune.engine.local.allocator import set_up_cpu_memory

_NOTHING = ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "synchronize", "set_device", "manual_seed")
_NOTHING_EITHER = ("manual_seed_all", "set_rng_state", "reset_max_memory_allocated")
_ZERO = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")
_MEMORY = (8 << 30, 16 << 30)
"""Free and total memory, for code that asks; nothing depends on it."""


class _Device(types.ModuleType):
    """torch.cpu, with the functions of torch.cuda that verl calls."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def _device() -> types.ModuleType:
    device: Any = _Device("astune_verl_cpu")
    for name in (*_NOTHING, *_NOTHING_EITHER):
        setattr(device, name, lambda *_, **__: None)
    for name in _ZERO:
        setattr(device, name, lambda *_, **__: 0)
    device.mem_get_info = lambda *_, **__: _MEMORY
    device.is_available = lambda: True
    device.device_count = lambda: 1
    device.current_device = lambda: 0
    device.get_rng_state = lambda *_, **__: torch.get_rng_state()
    device.get_device_name = lambda *_, **__: "CPU"
    return device


@PlatformRegistry.register(platform="cpu")
class PlatformCpu(PlatformBase):
    """Device interface that verl expects."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _one_backend() -> None:
    """verl asks for `cpu:gloo,cpu:gloo`, which torch refuses."""
    import verl.utils.distributed as distributed

    start = distributed.initialize_global_process_group_ray

    def with_gloo(timeout_second: int | None = None, backend: str | None = None) -> Any:
        return start(timeout_second, backend or "gloo")

    distributed.initialize_global_process_group_ray = with_gloo


def _pause_by_mode(module: Any) -> None:
    """Translate for vLLM 0.32 the option that aborts running answers."""
    pause = module.AsyncLLM.pause_generation

    async def pause_generation(self: Any, *, wait_for_inflight_requests: bool | None = None, **named: Any) -> None:
        if wait_for_inflight_requests is not None:
            named["mode"] = "wait" if wait_for_inflight_requests else "abort"
        await pause(self, **named)

    module.AsyncLLM.pause_generation = pause_generation


def _map_adapters_names(module: Any) -> None:
    """vLLM 0.32 calls otherwise what maps an adapter's names."""
    module.WeightsMapper.get_unstacked_mapper = module.WeightsMapper.get_rename_mapper


def _without_pinning(module: Any) -> None:
    """Weights of the reference model rest in memory that only a GPU's driver can pin."""
    policy = module.CPUOffloadPolicy
    module.CPUOffloadPolicy = lambda pin_memory=False: policy(pin_memory=False)


def _log_as_printed(module: Any) -> None:
    """Drop the `flush` that verl passes to a logger as if it were `print`; no logger accepts it."""
    info = module.logger.info
    module.logger.info = lambda message, flush=False: info(message)


require_versions(VERSIONS | VLLM, engine="verl")
set_up_cpu_memory()
_one_backend()
keep_vllm_weights()
after_import("verl.workers.engine.fsdp.transformer_impl", _without_pinning)
after_import("verl.trainer.ppo.v1.trainer_separate_async", _log_as_printed)
after_import("vllm.v1.engine.async_llm", _pause_by_mode)
after_import("vllm.model_executor.models.utils", _map_adapters_names)
