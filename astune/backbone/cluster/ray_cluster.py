"""Ray cluster of a run: a local one started for it, or an existing one.

`RAY_ADDRESS` names one that is there, as everywhere in Ray; `--with-ray` sets it. Processes of a local Ray inherit the
environment; on an existing one they get what they need of it as the job's runtime environment.
"""

# pyright: reportMissingImports=false
# Ray is in the engine's environment.

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from typing import Any

import orjson

from astune.schema import ConfigError

OWN = "local"
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable from which Ray reads a job's configuration."""
_RAY_PORT = 6379
_SMALL: dict[str, Any] = {"num_cpus": 16, "num_gpus": 2, "object_store_memory": 500_000_000}
"""Without a GPU: places to compute that engines take for GPUs, one to train and one to sample."""
_KIND = "accelerator_type:"
"""So begins the name of a resource by which a node of Ray's says what GPUs it found."""


def address() -> str:
    """The address of Ray; `local` where a run starts its own."""
    return os.environ.get("RAY_ADDRESS") or OWN


def resources(*, on_cpu: bool) -> dict[str, Any]:
    """Options of a local Ray; an existing one has its own."""
    return dict(_SMALL) if on_cpu and address() == OWN else {}


def prepare(needed: Iterable[str]) -> None:
    """Set this process's environment for Ray, which reads it when it is imported.

    A local Ray answers only callers with its token; on an existing one, processes get the variables `needed`.
    """
    if address() == OWN:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        return
    variables = {name: os.environ[name] for name in needed if name in os.environ}
    os.environ[_JOB] = orjson.dumps({"runtime_env": {"env_vars": variables}}).decode()


def require_no_gpus() -> None:
    """Check that a plan for machines without a GPU runs on a cluster without GPUs.

    Raises:
        ConfigError: it has some, which would not be used.
    """
    if address() == OWN:
        return
    import ray

    ray.init(address=address(), log_to_driver=False)
    try:
        found = sorted(name.removeprefix(_KIND) for name in ray.cluster_resources() if name.startswith(_KIND))
    finally:
        ray.shutdown()
    if found:
        raise ConfigError(
            f"this machine has no GPU, so everything is planned for a CPU, and the cluster at {address()} has "
            f"{', '.join(found)}",
            hint="start astune on a machine of the cluster that has GPUs",
        )


def own_host() -> str:
    """The address of this machine that processes on the cluster reach it at."""
    place = address().removeprefix("ray://")
    if place == OWN:
        return "127.0.0.1"
    host, _, port = place.rpartition(":")
    return host_towards(host or socket.gethostname(), int(port) if port.isdigit() else _RAY_PORT)


def host_towards(host: str, port: int) -> str:
    """The address of this machine that another one, or this one, reaches it at."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:  # says which way it would go, and sends nothing
        asking.connect((host, port))
        return asking.getsockname()[0]
