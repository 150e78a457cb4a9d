"""What a weight sync that does nothing looks like: verl's servers are given the first weights again at every step.

verl imports it in its processes where `VERL_USE_EXTERNAL_MODULES` names it: a control for what finds that out.
"""

from __future__ import annotations

from typing import Any

from astune.backbone.cluster.after_import import after_import


def _send_the_first_again(module: Any) -> None:
    send = module.ServerAdapter.update_weights
    first: list[tuple[str, Any]] = []

    async def send_first(self: Any, weights: Any, **named: Any) -> Any:
        sent = [(name, tensor.detach().clone()) for name, tensor in weights]
        first.extend([] if first else sent)
        return await send(self, iter(first), **named)

    module.ServerAdapter.update_weights = send_first


after_import("verl.workers.rollout.vllm_rollout.vllm_rollout", _send_the_first_again)
