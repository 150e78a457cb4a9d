"""What a vLLM server that we start can do beside vLLM's own: take new weights from a folder.

vLLM loads this file by `--worker-extension-cls` in its own environment, so it imports nothing of astune, and lies in a
folder of its own, which is all that the server gets to see of us.
"""

from __future__ import annotations

from typing import Any


class TakesWeights:
    """Mixed into vLLM's worker; `self` is the worker."""

    def can_take_weights(self: Any) -> list[str]:
        """Answered by servers that were started so that they can be trained with."""
        return []

    def take_weights(self: Any, folder: str) -> list[str]:
        """Load the checkpoint in `folder` in place.

        On CPUs vLLM packs linear layers when it loads a model, and its own reload leaves the packed copy of a head that
        is tied to the embedding as it was; the head is therefore packed again.
        """
        self.reload_weights(weights_path=folder)
        head = getattr(self.get_model(), "lm_head", None)
        if head is not None and hasattr(head, "cpu_linear"):
            from vllm.model_executor.layers.utils import (  # pyright: ignore[reportMissingImports]
                dispatch_cpu_unquantized_gemm,
            )

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)
        return [folder]
