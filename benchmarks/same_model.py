"""Whether an engine computes the same model: its log-probabilities beside those of transformers in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.engine_scenarios import Prompts
from benchmarks.engine_sides import Side

ANSWERS = 4
NEW_TOKENS = 64
TOLERANCE = {"bf16": 0.05, "int8": 0.1}
"""The mean difference that these weights explain."""


async def require_same_model(folder: Path, sides: list[Side], prompts: Prompts) -> dict[str, float]:
    """The mean absolute difference over a few hundred tokens that each side drew itself.

    Raises:
        SystemExit: one differs by more than its weights' precision explains, so that a comparison means nothing.
    """
    import torch
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    differences: dict[str, float] = {}
    for side in sides:
        errors: list[float] = []
        for index in range(ANSWERS):
            prompt = prompts.first(2000, index)
            drawn = await side.generate(prompt, NEW_TOKENS, f"same-{index}")
            side.end(f"same-{index}")
            expected = teacher_forced(model, prompt, drawn.token_ids)
            errors += [abs(one - other) for one, other in zip(drawn.logprobs, expected, strict=True)]
        differences[side.name] = sum(errors) / len(errors)
        print(f"  {side.name}: log-probabilities differ by {differences[side.name]:.4f} on average", flush=True)
        if not differences[side.name] < TOLERANCE[side.weights]:
            raise SystemExit(f"{side.name} does not compute the same model: {differences[side.name]:.4f}")
    return differences


def teacher_forced(model: Any, prompt: list[int], answer: list[int]) -> list[float]:
    """The log-probability of each token of an answer, given the prompt and the tokens before it."""
    import torch

    with torch.inference_mode():
        logits_TV = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    return logits_TV.float().log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()
