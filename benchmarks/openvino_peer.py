"""OpenVINO GenAI as a peer of our engine: its continuous batching with prefix caching, on a GGUF file.

    .venv-openvino/bin/python -m benchmarks.openvino_peer MODEL.gguf

It computes in bf16, and keeps keys and values in 16 bits like the others; its default would be 8.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import openvino  # pyright: ignore[reportMissingImports]
import openvino_genai  # pyright: ignore[reportMissingImports]

from benchmarks.peer_process import Asked, Drawn, serve

SEQUENCES = 64
BATCH = 2048
CACHE_GB = 2


class OpenVino:
    def __init__(self, model: str) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_seqs = SEQUENCES
        scheduler.max_num_batched_tokens = BATCH
        scheduler.enable_prefix_caching = True
        properties = {
            "INFERENCE_PRECISION_HINT": "bf16",
            "KV_CACHE_PRECISION": "f16",
            "INFERENCE_NUM_THREADS": os.cpu_count() or 1,
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._running: dict[int, Any] = {}

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def add(self, asked: Asked) -> None:
        config = openvino_genai.GenerationConfig()
        config.do_sample, config.temperature, config.logprobs = True, 1.0, 1
        config.ignore_eos, config.max_new_tokens, config.rng_seed = True, asked.max_tokens, asked.number
        prompt = openvino.Tensor(np.array([asked.prompt], np.int64))
        self._running[asked.number] = self._pipeline.add_request(asked.number, prompt, config)

    def step(self) -> list[tuple[int, Drawn]]:
        self._pipeline.step()
        ended = [
            number
            for number, handle in self._running.items()
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING
        ]
        outputs = [(number, self._running.pop(number).read_all()[0]) for number in ended]
        return [(number, Drawn(output.generated_ids, output.generated_log_probs)) for number, output in outputs]


def main() -> None:
    serve(OpenVino(sys.argv[1]))


if __name__ == "__main__":
    main()
