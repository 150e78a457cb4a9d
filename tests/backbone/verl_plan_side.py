"""verl's own configuration of work orders, on a machine that has GPUs; runs in verl's environment.

[{"order", "on_cpu"}, ...] -> [{"said": {dotted key: value}} or {"refused": "..."}, ...]
"""

from __future__ import annotations

import json
import sys
from typing import Any

from omegaconf import OmegaConf

from astune.backbone.cluster.layers import leaves
from astune.backbone.cluster.work_order import WorkOrder
from astune.backbone.verl.settings import verl_config
from astune.schema import ConfigError


def said_of(order: dict[str, Any], *, on_cpu: bool) -> dict[str, Any]:
    try:
        made = OmegaConf.to_container(verl_config(WorkOrder.model_validate(order), on_cpu=on_cpu), resolve=True)
    except ConfigError as refused:
        return {"refused": str(refused)}
    return {"said": dict(leaves(made))}  # type: ignore[arg-type]


asked = json.load(sys.stdin)
json.dump([said_of(one["order"], on_cpu=one["on_cpu"]) for one in asked], sys.stdout)
