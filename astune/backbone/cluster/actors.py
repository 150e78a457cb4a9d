"""What notices that a Ray actor died, while another waits for it."""

# pyright: reportMissingImports=false
# Ray is in the engine's environment.

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray

_LOOKS_S = 5.0
"""Seconds between looks at the actors; one that died is known after two."""


def watch(actors: Mapping[str, Any], on_death: Callable[[str], None]) -> Callable[[], None]:
    """Call `on_death` when an actor dies: a question that it was asked while it lived fails then, busy or not.

    Returns what ends the watch, for actors that are about to be ended.
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
                    on_death(f"the {name} died: {str(cause).strip().splitlines()[0]}")
                    return
                asked[name] = actors[name].__ray_ready__.remote()

    threading.Thread(target=look, name="astune-watch", daemon=True).start()
    return over.set
