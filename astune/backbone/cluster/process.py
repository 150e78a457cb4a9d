"""The process that calls an engine, in the engine's environment: `python -m astune.backbone.verl`, or `.trinity`.

`supervise.py` starts it. With `plan` it prints the engine's whole configuration for a job on its standard input, and
starts nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any, Protocol

import orjson

from astune.backbone.cluster import ray_cluster
from astune.backbone.cluster.hooks import require_versions
from astune.backbone.cluster.messages import RunFailed
from astune.backbone.cluster.reports import ADDRESS, TOKEN, Reports
from astune.backbone.cluster.work_order import WorkOrder
from astune.backbone.parts import load_parts
from astune.schema import AstuneError, ConfigError

EVERYWHERE = {
    "PYTHONUNBUFFERED": "1",
    "HYDRA_FULL_ERROR": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "none",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables of each process of an engine."""
_ON_CPU = {
    "VERL_USE_EXTERNAL_MODULES": "astune.backbone.cpu_clusters.verl_on_cpu",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": str(os.cpu_count() or 1),  # Ray would give each process one
    "OMP_WAIT_POLICY": "passive",  # threads that spin while they wait take the cores of other processes
}
"""Environment variables without a GPU; existing values are kept."""
_ERROR = re.compile(r"[\w.]+(Error|Exception|Exit)\b: ")


class Call(Protocol):
    """Purpose for which the engine is started."""

    def __call__(self, order: WorkOrder, *, on_cpu: bool) -> Any: ...


def main(
    arguments: list[str],
    *,
    plan: Call,
    run: Call,
    versions: Mapping[str, str],
    engine: str,
    on_cpu_first: Callable[[], None] = lambda: None,
) -> int:
    """Print what `plan` makes of a job, or `run` the run server's; returns the exit status.

    Args:
        versions: of the packages that our hooks into the engine are for; others are refused, on every device.
        on_cpu_first: what else is to be done where there is no GPU, before the engine is imported.
    """
    on_cpu = not _has_gpu()  # as where it is typed, so on the cluster
    if on_cpu:
        os.environ.update({name: os.environ.get(name, value) for name, value in _ON_CPU.items()})

    def require_engine() -> None:
        require_versions(versions, engine=engine)
        if on_cpu:
            on_cpu_first()

    if arguments == ["plan"]:
        order = WorkOrder.model_validate(orjson.loads(sys.stdin.buffer.read()))
        return _print(require_engine, plan, order, on_cpu=on_cpu)
    server = Reports(os.environ[ADDRESS], os.environ[TOKEN])
    try:
        require_engine()
        ray_cluster.prepare([ADDRESS, TOKEN, "PYTHONPATH", *EVERYWHERE, *_ON_CPU])
        order = server.work_order()
        _require_parts(order)
        if on_cpu:
            ray_cluster.require_no_gpus()
        run(order, on_cpu=on_cpu)
    except AstuneError as failure:
        server.send(RunFailed(error=str(failure)))
        return 1
    except Exception as failure:
        server.send(RunFailed(error=_first_cause(failure)))
        raise
    return 0


def _print(require_engine: Callable[[], None], plan: Call, order: WorkOrder, *, on_cpu: bool) -> int:
    try:
        with redirect_stdout(sys.stderr):  # where engines log
            require_engine()
            _require_parts(order)
            made = plan(order, on_cpu=on_cpu)
    except AstuneError as failure:
        sys.stderr.write(f"{failure}\n")
        return 2
    sys.stdout.write(f"# for machines {'without a GPU' if on_cpu else 'with GPUs'}, as this one is\n{made}")
    return 0


def _require_parts(order: WorkOrder) -> None:
    """The user's workflow and judge are imported here as by the engine's workers.

    Raises:
        ConfigError: they cannot be.
    """
    try:
        load_parts(order.config, order.base_dir, with_tasks=False, workers_connect_here=False)
    except ConfigError as cause:
        raise ConfigError(
            f"in the engine's environment, {sys.prefix}: {cause}",
            hint=f"what your agent imports has to be there, too: {sys.executable} -m pip install ...",
        ) from cause


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _first_cause(failure: Exception) -> str:
    """Find the root cause: Ray's errors quote whole tracebacks, of which the last error is the cause."""
    errors = [line.strip() for line in str(failure).splitlines() if _ERROR.match(line.strip())]
    return errors[-1] if errors else f"{type(failure).__name__}: {failure}"
