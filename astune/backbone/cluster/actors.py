"""Detection of dead Ray actors while another one waits for them."""

# pyright: reportMissingImports=false
# Ray is in the engine's environment.

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import ray

from astune.backbone.cluster.messages import RunFailed
from astune.backbone.cluster.reports import reports

_LOOKS_S = 5.0
"""Seconds between looks at the actors; one that died is known after two."""


def watch(actors: Mapping[str, Any]) -> Callable[[], None]:
    """End this process when an actor dies, and report why: whoever waits for that actor would not notice.

    A question that an actor was asked while it lived fails when it dies, busy or not. Returns what ends the watch, for
    actors that are about to be ended.
    """
    over = threading.Event()

    def look() -> None:
        asked = {name: actor.__ray_ready__.remote() for name, actor in actors.items()}
        while not over.wait(_LOOKS_S):
            for name, question in asked.items():
                if not ray.wait([question], timeout=0)[0]:
                    continue
                try:
                    ray.get(question)
                except ray.exceptions.RayError as cause:
                    _end(f"the {name} died: {str(cause).strip().splitlines()[0]}")
                asked[name] = actors[name].__ray_ready__.remote()

    threading.Thread(target=look, name="astune-watch", daemon=True).start()
    return over.set


def _end(cause: str) -> NoReturn:
    try:
        reports().send(RunFailed(error=cause))
    finally:
        os._exit(1)
