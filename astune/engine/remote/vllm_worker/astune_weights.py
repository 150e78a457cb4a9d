"""Extension of a vLLM worker, so that a running server accepts the weights of a training step.

It runs inside vLLM's process, in vLLM's environment: its folder alone is on that process's PYTHONPATH, and nothing of
astune or of what astune depends on is imported. The server is started with

    VLLM_SERVER_DEV_MODE=1 PYTHONPATH=THIS_FOLDER ... --worker-extension-cls astune_weights.TakesWeights
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

PROTOCOL = 1


class TakesWeights:
    """Mixed into the worker's class. Called through `/collective_rpc`, on every worker of the server."""

    model_runner: Any
    vllm_config: Any

    def astune_state(self) -> dict[str, Any]:
        """Return its capabilities, and the name of the last loaded weights.

        `seeds_end_it`: on a CPU vLLM 0.32 ends when it reads the prompt of a request that has a seed in pieces.
        """
        in_pieces = bool(self.vllm_config.scheduler_config.enable_chunked_prefill)
        on_cpu = bool(import_module("vllm.platforms").current_platform.is_cpu())
        return {
            "protocol": PROTOCOL,
            "holds": getattr(self, "astune_holds", ""),
            "seeds_end_it": on_cpu and in_pieces,
        }

    def astune_take_weights(self, folder: str, name: str) -> dict[str, str]:
        """Read every weight from the safetensors files of a folder; answers with `name`, or with an error.

        Keys and values that were computed with the old weights are the caller's to drop.
        """
        if not any(Path(folder).glob("*.safetensors")):
            return {"error": f"there is no safetensors file in {folder} on this machine"}
        self.astune_holds = ""
        self.model_runner.reload_weights(weights_path=folder)
        _pack_again(self.model_runner.get_model())
        self.astune_holds = name
        return {"name": name}


def _pack_again(model: Any) -> None:
    """Repack the output head if it shares the embeddings, as on a CPU.

    Such a head is in no file of weights, so that a reload, which packs layers as it reads them, leaves it as it was.
    """
    layers = import_module("vllm.model_executor.layers.vocab_parallel_embedding")
    for module in model.modules():
        is_vocabulary = isinstance(module, layers.VocabParallelEmbedding)
        if is_vocabulary and isinstance(module.quant_method, layers.UnquantizedEmbeddingMethod):
            module.quant_method.process_weights_after_loading(module)
