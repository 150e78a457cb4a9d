"""Whether a model can train on prefix trees: found by comparison with its own forward pass, in float32.

Layers that carry a state along the sequence (recurrent or linear attention, convolutions) take the tree's layout for
one long sequence, and attention that does not go through transformers' interface ignores the plan. Both compute
other logits, and a model that refuses the attempt computes none.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from astune.schema import TrainerError
from astune.trainer._fast_layers import use_fast_layers
from astune.trainer._rotary import use_fast_rotary
from astune.trainer.attention import TREE_ATTENTION, attending
from astune.trainer.attention_plan import plan_attention
from astune.trainer.trie import build_tree

_log = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Relative L2 error of float32 logits; rounding stays below 1e-5, and one wrong neighbour is far above."""


@torch.no_grad()
def prepare(causal_lm: Any) -> bool:
    """Give a float32 model fast layers, and tree attention where its layers can take it.

    Returns:
        whether they can; if not, the model keeps its own attention and reads one sequence at a time.

    Raises:
        TrainerError: its logits are not finite, or not a linear map of its last hidden states.
    """
    name = type(causal_lm).__name__
    sequences = _sequences(causal_lm)
    plain = [causal_lm(input_ids=_row(causal_lm, ids), use_cache=False).logits[0] for ids in sequences]
    if not all(logits.isfinite().all() for logits in plain):
        raise TrainerError(
            f"the output of the {name} in {causal_lm.name_or_path} is not finite",
            hint="its weights are damaged: copy its files again, or train from an earlier checkpoint",
        )
    use_fast_layers(causal_lm)
    use_fast_rotary(causal_lm)
    own_attention = causal_lm.config._attn_implementation
    try:
        difference = _error(_of_tree(causal_lm, sequences), plain)
        reason = f"relative error {difference:.2g} of its logits"
    except Exception as cause:  # whatever a foreign model does with a layout that it was not made for
        difference, reason = float("inf"), f"{type(cause).__name__}: {cause}"
    if difference < TOLERANCE:
        return True
    causal_lm.set_attn_implementation(own_attention)
    alone = [causal_lm.base_model(input_ids=_row(causal_lm, ids), use_cache=False) for ids in sequences]
    error = _error([_logits(causal_lm, output) for output in alone], plain)
    if not error < TOLERANCE:
        raise TrainerError(
            f"{name}: its logits are not a linear map of its last hidden states (relative error {error:.2g})",
            hint="training computes the logits of trained tokens only, from these states; choose another architecture",
        )
    _log.warning(
        "%s cannot share the beginnings of timelines (%s): each is trained alone, with the model's own forward pass; "
        "the gradient is the same, the time is not",
        name,
        reason,
    )
    return False


def _sequences(causal_lm: Any) -> list[list[int]]:
    """Two that begin alike."""
    vocabulary = causal_lm.get_output_embeddings().weight.shape[0]
    ids = torch.arange(12).mul_(7919).remainder_(vocabulary).tolist()
    return [ids[:5] + ids[5:8], ids[:5] + ids[8:12]]


def _of_tree(causal_lm: Any, sequences: list[list[int]]) -> list[Tensor]:
    tree = build_tree(sequences)
    causal_lm.set_attn_implementation(TREE_ATTENTION)
    with attending(plan_attention(tree, causal_lm.device)):
        output = causal_lm.base_model(
            input_ids=_row(causal_lm, tree.token_ids.tolist()),
            position_ids=_row(causal_lm, tree.position_ids.tolist()),
            use_cache=False,
        )
    logits = _logits(causal_lm, output)
    return [logits[torch.from_numpy(rows).to(logits.device)] for rows in tree.rows]


def _logits(causal_lm: Any, output: Any) -> Tensor:
    return causal_lm.get_output_embeddings()(output.last_hidden_state[0])


def _row(causal_lm: Any, numbers: list[int]) -> Tensor:
    return torch.tensor([numbers], device=causal_lm.device)


def _error(found: list[Tensor], expected: list[Tensor]) -> float:
    one, other = torch.cat(found).cpu().double(), torch.cat(expected).cpu().double()
    return float((one - other).norm() / other.norm())
