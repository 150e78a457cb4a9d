"""What a weight sync that does nothing looks like: verl's servers are given the first weights again at every step.

verl imports it in its processes where `VERL_USE_EXTERNAL_MODULES` names it: a control for what finds that out.
With `ASTUNE_TEST_FAKE=changed` one weight is another each time, so that the servers do not say the same as before.
"""

from __future__ import annotations

import os
from typing import Any

from astune.backbone.cluster.hooks import after_import

_NORM = "model.norm.weight"


def _send_the_first_again(module: Any) -> None:
    send = module.ServerAdapter.update_weights
    first: list[tuple[str, Any]] = []
    times = 0

    async def send_first(self: Any, weights: Any, **named: Any) -> Any:
        nonlocal times
        sent = [(name, tensor.detach().clone()) for name, tensor in weights]
        first.extend([] if first else sent)
        times += 1
        scale = 1 + 0.001 * times if os.environ["ASTUNE_TEST_FAKE"] == "changed" else 1
        return await send(self, ((name, one * scale if name == _NORM else one) for name, one in first), **named)

    module.ServerAdapter.update_weights = send_first


after_import("verl.workers.rollout.vllm_rollout.vllm_rollout", _send_the_first_again)
