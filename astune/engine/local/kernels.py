"""`kernels.c`, compiled where it runs: norms, rotary positions and the attention of next tokens on a CPU.

Between a layer's matrix products stand some fifty small operators, and for the few tokens of a decoding step
starting them takes longer than what they compute. Where there is no gcc, torch's operators do the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from astune.engine.compiled import addresses, compiled_for
from astune.engine.local.slots import LayerShape
from astune.schema import EngineError

_SOURCE = Path(__file__).with_suffix(".c")
_QUERIES = 4
"""`QUERIES` of the source."""
_LANES = 16
"""Head dimensions and the room for scores are multiples of it."""
_SIGNATURES = {
    "rms_norm": [c_void_p] * 3 + [c_int64] * 2 + [c_float, c_int64],
    "turn_and_store": [c_void_p] * 3 + [c_float] + [c_void_p] * 6 + [c_int64] * 6,
    "attend": [c_void_p, c_int64] + [c_void_p] * 8 + [c_int64] * 6 + [c_float] * 2 + [c_int64] * 2,
    "add_low_rank": [c_void_p] * 5 + [c_int64] * 5,
}


def kernels(dtype: torch.dtype) -> Kernels:
    """The compiled functions for tensors of this dtype.

    Raises:
        EngineError: they are not available here.
    """
    found = _kernels(dtype)
    if found is None:
        raise EngineError(f"there are no compiled kernels for {dtype}", hint="install gcc")
    return found


def are_available(dtype: torch.dtype) -> bool:
    """Whether there are kernels for tensors of this dtype; where there are none, the log says why, once."""
    return _kernels(dtype) is not None


@cache
def _kernels(dtype: torch.dtype) -> Kernels | None:
    functions = compiled_for(dtype, _SOURCE, _SIGNATURES, doing="sampling", library=ctypes.PyDLL)
    return None if functions is None else Kernels(functions)


class Kernels:
    """Row-major tensors on the CPU, all of one dtype; the source describes what is computed."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._functions = functions

    def rms_norm(self, x_NW: Tensor, weight_W: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x_NW)
        self._functions.rms_norm(*addresses(x_NW, weight_W, out), *x_NW.shape, eps, torch.get_num_threads())
        return out

    def turn_and_store(
        self,
        qkv_NHD: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
        angles: tuple[Tensor, Tensor],
        slots_N: Tensor,
        positions_N: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> None:
        """Norm and turn the queries and keys of `qkv_NHD` [N, heads + 2 kv heads, D] in place, store keys and values.

        Args:
            norms: weights [D] of the queries' and of the keys' norm.
            angles: cosines and sines [N, D / 2] in float32.
        """
        tokens, rows, dim = qkv_NHD.shape
        kv_heads, capacity = keys.shape[1:3]
        self._functions.turn_and_store(
            *addresses(qkv_NHD, *(norms or (None, None))),
            eps,
            *addresses(*angles, slots_N, positions_N, keys, values),
            *(tokens, rows - 2 * kv_heads, kv_heads, dim, capacity, torch.get_num_threads()),
        )

    def attend(
        self,
        q_NHD: Tensor,
        keys: Tensor,
        values: Tensor,
        places: tuple[Tensor, Tensor, Tensor, Tensor],
        *,
        scale: float,
        window: int,
        softcap: float | None = None,
        scores: Tensor,
    ) -> Tensor:
        """Each query attends to the last `window` of its sequence's tokens: [N, heads, D].

        Args:
            places: each sequence's slot, its length, the slot that holds the beginning that it shares, and how many
                tokens that has; [N] each.
            scores: room, from `room_for_scores`.
        """
        sequences, heads, dim = q_NHD.shape
        if q_NHD.stride()[1:] != (dim, 1):
            q_NHD = q_NHD.contiguous()
        out = q_NHD.new_empty(q_NHD.shape)
        self._functions.attend(
            *(q_NHD.data_ptr(), q_NHD.stride(0)),
            *addresses(keys, values, out, scores, *places),
            *(window, sequences, heads, keys.shape[1], dim, keys.shape[2]),
            *(scale, softcap or 0.0),
            *(scores.shape[0], scores.shape[2]),
        )
        return out

    def add_low_rank(self, x_ND: Tensor, y_NE: Tensor, rows: Tensor, ends_P: Tensor, adapters: Tensor) -> None:
        """Add adapters' products with `x_ND` to `y_NE` in place.

        Args:
            rows: of policy 0, of policy 1 and so on; `ends_P` says where each policy's end.
            adapters: `LowRank` of the source, one a row: the policy, addresses of both factors, rank, first column,
                number of columns.
        """
        self._functions.add_low_rank(
            *addresses(x_ND, y_NE, rows, ends_P, adapters),
            *(len(adapters), len(ends_P), x_ND.shape[1], y_NE.shape[1], torch.get_num_threads()),
        )


def can_attend(keys: Tensor, values: Tensor) -> bool:
    """Whether there is an `attend` for keys and values of this kind."""
    return keys.shape == values.shape and keys.shape[-1] % _LANES == 0 and are_available(keys.dtype)


def can_attend_to(shapes: Iterable[LayerShape], dtype: torch.dtype) -> bool:
    """Whether there is one for every layer of a model."""
    fits = all(shape.key_dim == shape.value_dim and shape.key_dim % _LANES == 0 for shape in shapes)
    return fits and are_available(dtype)


def room_for_scores(length: int) -> Tensor:
    """[threads, queries, tokens], for sequences of up to `length` tokens."""
    return torch.empty(torch.get_num_threads(), _QUERIES, -(-length // _LANES) * _LANES)
