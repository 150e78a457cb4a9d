"""The learning rate of verl's workers, with which both engines train: verl reports that of the next step alone."""

# pyright: reportMissingImports=false
# Ray is in the engine's environment.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray
from torch.optim.lr_scheduler import LambdaLR

_T = TypeVar("_T")


def rate_of(workers: Sequence[Any]) -> float:
    """The rate of the update to come."""
    return _in_each(workers[:1], rate)[0]


def follow_configuration(workers: Sequence[Any]) -> None:
    """Let the rate follow the configuration of a resumed run: a checkpoint that was loaded brought the earlier one."""
    _in_each(workers, set_base_rate)


def rate(engine: Any) -> float:
    """The present rate of verl's engine."""
    return float(engine.optimizer.param_groups[0]["lr"])


def set_base_rate(engine: Any) -> None:
    """Set the rate from which FSDP's schedule starts; Megatron's takes the configured one itself."""
    schedule, base = engine.lr_scheduler, engine.optimizer_config.lr
    if not isinstance(schedule, LambdaLR):
        return
    schedule.base_lrs = [base for _ in schedule.base_lrs]
    for group, factor in zip(engine.optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["lr"] = base * factor(schedule.last_epoch)


def _in_each(workers: Sequence[Any], act: Callable[[Any], _T]) -> list[_T]:
    return ray.get([worker.__ray_call__.remote(_with_engine, act) for worker in workers])


def _with_engine(process: Any, act: Callable[[Any], _T]) -> _T:
    """Call with the engine of the model that is trained, in a process of its worker."""
    [actor] = [one.actor for one in process.worker_dict.values() if getattr(one, "actor", None) is not None]
    return act(actor.engine)
