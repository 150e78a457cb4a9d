"""A run of verl on a cluster where another one's queue is; runs in verl's environment.

null -> ["why it does not begin", "why not once that queue has ended, or nothing"]
"""

from __future__ import annotations

import json
import sys

import ray

from astune.backbone.verl.names import QUEUE
from astune.backbone.verl.runner import require_own_queue
from astune.schema import ConfigError


class Queue:
    """Another run's."""


def refusal(within_s: float) -> str:
    try:
        require_own_queue(within_s)
    except ConfigError as refused:
        return str(refused)
    return ""


ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
queue = ray.remote(Queue).options(**QUEUE).remote()
ray.get(queue.__ray_ready__.remote())
refused = refusal(0)
ray.kill(queue)
sys.stdout.write(f"\n{json.dumps([refused, refusal(60)])}\n")
