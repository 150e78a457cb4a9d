"""Memory on a CPU: a setting of the C library's allocator, and buffers outside its heap; engine and trainer share both.

glibc gives large blocks back to the system as soon as they are freed, and a training step allocates and frees
gigabytes: a third of its time went into page faults, and two thirds of a decoding step that copies keys and values.
Kept, they cost memory up to the step's own peak, which the next step needs anyway. Where there is no glibc
nothing happens. What stays longer than a phase lies outside the heap: blocks of a step that are freed around it would
be holes, which the next step's blocks fit into only in part.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate

import torch
from torch import Tensor

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Limits of compiled kernels that oneDNN and torch keep; 1,024 by default."""
_KERNELS_KEPT = 64
"""A forward pass has some ten, each for its number of rows. A kernel takes a millisecond to make and half a MiB, and
1,024 of them lie between the heap's other blocks: of 256 numbers of rows, 1.3 GiB were left over, with 64 kept 0.01."""
_LEAST_MAPPED = 1 << 16
"""Bytes of a buffer that is worth a mapping of its own, which is of whole pages."""
_NO_RESERVE = 0x4000 if (sys.platform, platform.machine()) in {("linux", "x86_64"), ("linux", "aarch64")} else 0
"""`MAP_NORESERVE`, which the module `mmap` lacks; other systems have another number, or none."""
_ALIGNED = 64
"""Bytes at whose multiples a tensor begins."""


def set_up_cpu_memory() -> None:
    """Keep freed blocks in the process, and few of oneDNN's kernels, for its whole life.

    Blocks of other arenas than the first are given back whatever the threshold says, hence one arena for the
    threads that start from now on.
    """
    for cache in _KERNEL_CACHES:  # read when the first kernel is made
        os.environ.setdefault(cache, str(_KERNELS_KEPT))
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)  # or blocks above 32 MiB, the highest threshold, would go back each time
    mallopt(_M_TRIM_THRESHOLD, -1)


def give_back_freed_memory() -> None:
    """Return what is free by now to the system, at the end of a phase that others follow with other sizes of blocks.

    Freed blocks of rollouts are too small for a training step's, and a training step's lie between what stays; kept
    for all of a run, both add up. Taking the pages again costs a tenth of a second for a gigabyte.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A buffer of zeros. On a CPU a large one lies outside the heap: only what is written takes memory, and all of it
    is given back at once."""
    n_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or n_bytes < _LEAST_MAPPED:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(_mapping(n_bytes, "MADV_NOHUGEPAGE"), dtype=dtype).view(shape)


def zeros_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Zeros of each tensor's shape, dtype and device, for buffers that are written whole and given back together.

    On a CPU they lie one behind another in large pages, where the system has them: a page fault for each 4 KiB of a
    small model's gradients took a fifth of a training step.
    """
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return [torch.zeros_like(tensor) for tensor in tensors]
    ends = list(accumulate(-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors))
    if not ends or ends[-1] < _LEAST_MAPPED:
        return [torch.zeros_like(tensor) for tensor in tensors]
    pages = _mapping(ends[-1], "MADV_HUGEPAGE")
    return [
        torch.frombuffer(pages, dtype=tensor.dtype, count=tensor.numel(), offset=start).view(tensor.shape)
        if tensor.numel()  # a view of no bytes is an error
        else torch.zeros_like(tensor)
        for tensor, start in zip(tensors, [0, *ends], strict=False)
    ]


def _mapping(n_bytes: int, advice: str) -> mmap.mmap:
    """Memory of the system's, which is advised about its pages where it takes advice.

    Nothing is reserved for pages that are not written: Linux refuses a reservation above the machine's memory, and
    counts it once more when the process forks.
    """
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    if hasattr(mmap, advice):
        with suppress(OSError):  # a kernel without large pages
            pages.madvise(getattr(mmap, advice))
    return pages


def outside_heap(tensor: Tensor) -> Tensor:
    """A copy of a tensor that stays for long; on an accelerator the tensor itself."""
    return zeros_like([tensor])[0].copy_(tensor) if tensor.device.type == "cpu" else tensor
