"""What Trinity's explorer and trainer write to a log and go on from, told to the run's keeper, who ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from astune.backbone.cluster.reports import reports
from astune.schema import RunStoreError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def telling(method: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """The method, whose failures are told before they are raised; the end of an iteration is none."""

    @wraps(method)
    async def told(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return await method(*arguments, **named)
        except StopAsyncIteration:
            raise
        except Exception as cause:
            error = f"{type(cause).__name__}: {cause}"
            with suppress(RunStoreError):  # the keeper knows of a failure already, or is gone
                await asyncio.to_thread(reports().tell, "failed", error=error)
            raise

    return told
