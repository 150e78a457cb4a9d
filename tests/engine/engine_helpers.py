"""What the engine's tests share: engines on the CPU, and transformers' own word on log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from astune.config.schema import EngineConfig, ModelConfig
from astune.engine import InProcessEngine
from astune.schema import Completion


@dataclass
class Weights:
    """A WeightsSource over a transformers model."""

    version: int
    model: Any

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()


def load(
    folder: Path, *, dtype: str = "float32", deterministic: bool = False, max_model_len: int = 512, **engine: Any
) -> InProcessEngine:
    return InProcessEngine.load(
        folder,
        model=ModelConfig.model_validate({"device": "cpu", "dtype": dtype}),
        engine=EngineConfig(**engine),
        max_model_len=max_model_len,
        deterministic=deterministic,
    )


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32, attention: str = "eager") -> Any:
    """Eager attention is the reference: transformers' fused one leaves out the soft cap of Gemma's scores."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention).eval()


@torch.inference_mode()
def own_logprobs(model: Any, prompt: list[int], completion: Completion, temperature: float = 1.0) -> Tensor:
    """What transformers' forward says about the sampled tokens."""
    ids = torch.tensor([prompt + completion.token_ids])
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]


def assert_exact(model: Any, prompt: list[int], completion: Completion, temperature: float = 1.0) -> None:
    expected = own_logprobs(model, prompt, completion, temperature)
    assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the worker thread brings about; the test's own timeout bounds it."""
    while not condition():  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0)
