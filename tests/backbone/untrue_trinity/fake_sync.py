"""What a synchronisation that is faked looks like: Trinity's models are given the first step's weights ever again.

Trinity imports it in its processes where `TRINITY_PLUGIN_DIRS` names the folder: a control for what finds that out.
With `ASTUNE_TEST_FAKE=changed` one weight is another each time, so that the models do not say the same as before.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from trinity.common.models.model import ModelWrapper

sync = ModelWrapper.sync_model_weights
_NORM = "model.norm.weight"


async def sync_with_the_first(self: Any, model_version: int, *arguments: Any, **named: Any) -> None:
    folder = Path(self.config.checkpoint_job_dir)
    given = folder / f"global_step_{model_version}" / "actor" / "model.safetensors"
    first = folder / "first.safetensors"
    if not first.exists():
        shutil.copy(given, first)
    weights = load_file(first)
    if os.environ["ASTUNE_TEST_FAKE"] == "changed":
        weights[_NORM] = weights[_NORM] * (1 + 0.001 * model_version)
    save_file(weights, given)
    await sync(self, model_version, *arguments, **named)


ModelWrapper.sync_model_weights = sync_with_the_first
