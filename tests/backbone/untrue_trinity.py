"""What a synchronisation that is faked looks like: Trinity's trainer gives out the first step's weights ever again.

verl imports it in the trainer's process where `VERL_USE_EXTERNAL_MODULES` names it: a control for what finds that out.
With `ASTUNE_TEST_FAKE=changed` one weight is another each time, so that the models do not say the same as before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from astune.backbone.cluster.hooks import after_import

_NORM = "model.norm.weight"


def _give_out_the_first_again(module: Any) -> None:
    save = module.save_safetensors_streaming
    first: list[tuple[str, Any]] = []
    times = 0

    def save_the_first(weights: Iterable[tuple[str, Any]], path: str, **named: Any) -> Any:
        nonlocal times
        given = [(name, weight.detach().clone()) for name, weight in weights]
        first.extend([] if first else given)
        times += 1
        scale = 1 + 0.001 * times if os.environ["ASTUNE_TEST_FAKE"] == "changed" else 1
        return save(((name, weight * scale if name == _NORM else weight) for name, weight in first), path, **named)

    module.save_safetensors_streaming = save_the_first


after_import("trinity.trainer.verl.workers", _give_out_the_first_again)
