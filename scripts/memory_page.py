"""The text of docs/en/memory.md: memory of common model sizes with each backbone, by `astune/backbone/memory.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from astune.backbone.memory import GIB, ModelShape, estimates
from astune.config import load_config

WEREWOLVES = Path(__file__).parents[1] / "tutorial/example_werewolves/werewolves.yaml"

SHAPES = {
    "SmolLM2-135M": ModelShape(30, 576, 1536, 576, 192, 49152, tied=True),
    "Qwen2.5-0.5B": ModelShape(24, 896, 4864, 896, 128, 151936, tied=True),
    "Qwen2.5-1.5B": ModelShape(28, 1536, 8960, 1536, 256, 151936, tied=True),
    "Qwen2.5-3B": ModelShape(36, 2048, 11008, 2048, 256, 151936, tied=True),
    "Qwen2.5-7B": ModelShape(28, 3584, 18944, 3584, 512, 152064, tied=False),
    "Qwen2.5-14B": ModelShape(48, 5120, 13824, 5120, 1024, 152064, tied=False),
    "Qwen2.5-32B": ModelShape(64, 5120, 27648, 5120, 1024, 152064, tied=False),
}
COLUMNS = {
    "`local`, one GPU": ("backbone=local",),
    "`local`, LoRA": ("backbone=local", "model.lora.rank=32"),
    "`verl`, each of 8 GPUs": ("backbone=verl", "verl.trainer.n_gpus_per_node=8"),
    "`trinity`, each of 4 trainer GPUs": ("backbone=trinity", "trinity.cluster.gpu_per_node=5"),
}
GAME_COLUMNS = {
    "`local`, one GPU": ("backbone=local",),
    "`local`, LoRA": ("backbone=local", "model.lora.rank=32"),
    "`local`, both sides by LoRA": (
        "backbone=local",
        "models.wolf={targets: [werewolf], lora: {rank: 32}}",
        "models.village={targets: [villager, seer, witch, hunter], lora: {rank: 32}}",
    ),
    "`verl`, each of 8 GPUs": ("backbone=verl", "verl.trainer.n_gpus_per_node=8"),
}
INTRODUCTION = """# Memory

<!-- Made from astune/backbone/memory.py by `make docs`; changes made here are lost. -->

Memory per GPU in GiB that training needs, **estimated and not yet measured on GPUs**: weights, float32 gradients and
AdamW's moments, activations without gradient checkpointing, logits, and 1 GiB for libraries. `astune doctor --conf
FILE.yaml` prints the same for your experiment and its `model.path`, part by part and for each backbone; `--dry-run`
prints it for the experiment's backbone.
"""
NOTES = """
- `trainer.tokens_per_microbatch` has its default, {tokens:,}. Activations and logits grow with it: lower it if memory
  is short; the result of training does not change.
- The data type is bfloat16, as on GPUs; on a CPU without bfloat16 instructions weights and activations are float32.
- `local` alternates between training and episodes in the same memory; the table shows the larger of the two. While
  episodes run, it holds the trainer's weights and moments, the engine's copy of the weights, and at most {kv:g} GiB of
  cached keys and values (`engine.kv_cache_gb`).
- A sequence with more tokens than a micro-batch is not split. For such a sequence only the input of each layer is kept,
  and the layer is computed a second time (gradient checkpointing).
- With `verl`, vLLM uses the same GPUs while nothing is trained. With `trinity`, it has other GPUs, which hold the
  weights in bfloat16 and the keys and values.
- LoRA has rank 32.

The estimate is computed in `astune/backbone/memory.py`; a test compares its sums of weights, optimiser and activations
with a real trainer's tensors. Memory allocators need more in addition.
"""


GAMES = """## The nine-player game of werewolves

`tutorial/example_werewolves/werewolves.yaml`: eight concurrent games of nine conversations each, with a KV cache of at
most 8 GiB and sequences of up to 4,096 tokens; estimated as above. One side is trained, or both; with `verl` one.
"""


def memory_page() -> str:
    config = load_config(None)
    notes = NOTES.format(tokens=config.trainer.tokens_per_microbatch, kv=config.engine.kv_cache_gb)
    games = _table(GAME_COLUMNS, WEREWOLVES)
    return "\n".join([INTRODUCTION, *_table(COLUMNS, None), notes, GAMES, *games, ""])


def _table(columns: Mapping[str, tuple[str, ...]], experiment: Path | None) -> list[str]:
    lines = [f"| model | parameters | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for name, shape in SHAPES.items():
        totals = [f"{gib_of(shape, overrides, experiment):.0f}" for overrides in columns.values()]
        lines.append(f"| {name} | {shape.parameters / 1e9:.2f} B | {' | '.join(totals)} |")
    return lines


def gib_of(shape: ModelShape, overrides: tuple[str, ...], experiment: Path | None) -> float:
    """GiB that training a model of that shape needs on a GPU."""
    config = load_config(experiment, overrides)
    return estimates(config, shape, on_gpu=True, in_bfloat16=True)[0].total / GIB
