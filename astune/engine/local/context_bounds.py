"""Maximum context within which a model's positions and attention do not depend on the length.

Up to there every layer attends to all tokens before it, and a token's position says all about where it stands. Beyond,
what a sequence gets would depend on what it is computed beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from astune.schema import ConfigError

_CHANGING_POSITIONS = ("dynamic", "longrope")
"""Kinds of rotary positions whose frequencies transformers chooses by the longest sequence of a forward pass."""


@dataclass(frozen=True, slots=True)
class Bound:
    """`tokens` is the longest context that `what` leaves as it is."""

    tokens: int
    what: str


def require_within_bounds(config: Any, max_model_len: int, *, windows: bool) -> None:
    """Refuse contexts that would silently be computed differently.

    Args:
        config: the model's text configuration, as transformers reads it.
        windows: whether windows of attention have to hold the whole context.

    Raises:
        ConfigError: a context may become longer than the model supports; names the length.
    """
    bounds = [*_position_bounds(config), *(_window_bounds(config) if windows else ())]
    least = min(bounds, key=lambda bound: bound.tokens, default=None)
    if least is not None and max_model_len > least.tokens:
        raise ConfigError(
            f"rollout.max_model_len is {max_model_len}, but {least.what} {least.tokens} tokens",
            hint=f"set rollout.max_model_len to {least.tokens} or less",
        )


def _position_bounds(config: Any) -> Iterator[Bound]:
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):  # one for all layers, or one for each kind of layer
        if isinstance(parameters, dict) and parameters.get("rope_type") in _CHANGING_POSITIONS:
            tokens = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
            yield Bound(tokens, "the model's rotary positions change beyond")


def _window_bounds(config: Any) -> Iterator[Bound]:
    kinds = getattr(config, "layer_types", None)
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    used = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    if window and used:
        yield Bound(window, "layers of the model attend to")
    if chunk and kinds and "chunked_attention" in kinds:
        yield Bound(chunk, "layers of the model attend within chunks of")
