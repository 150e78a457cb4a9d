"""The few functions of llama.cpp's library that the benchmark calls, through ctypes, as llama.cpp v0.5.0 lays them out.

Parameters travel by value in a block that is larger than llama.cpp's own: defaults are the library's, and only fields
at a known place are set. What the library made of them is read back and compared.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_uint8, c_uint32, c_void_p
from pathlib import Path

import numpy as np

VERSION = "v0.5.0"


class _Parameters(ctypes.Structure):
    """`llama_model_params`, or `llama_context_params`, which begins with n_ctx, n_batch, n_ubatch and n_seq_max."""

    _fields_ = (("words", c_uint32 * 64),)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", c_int32),
        ("token", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    )


class LlamaContext:
    """A model and its cache: `sequences` of at most `tokens` tokens each, every one with a cache of its own."""

    def __init__(self, libraries: Path, model: Path, *, sequences: int, tokens: int, batch: int, threads: int) -> None:
        self._library = library = _load(libraries)
        library.llama_backend_init()
        self._model = library.llama_model_load_from_file(str(model).encode(), library.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        parameters = library.llama_context_default_params()
        parameters.words[0], parameters.words[1], parameters.words[3] = sequences * tokens, batch, sequences
        self._context = library.llama_init_from_model(self._model, parameters)
        made = (
            library.llama_n_ctx(self._context),
            library.llama_n_batch(self._context),
            library.llama_n_seq_max(self._context),
        )
        if made != (sequences * tokens, batch, sequences):
            raise SystemExit(f"this llama.cpp is not {VERSION}: it made a context of {made}")
        library.llama_set_n_threads(self._context, threads, threads)
        self._memory = library.llama_get_memory(self._context)
        self._vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))

    def forget(self, sequence: int, after: int) -> None:
        """Drop the cached tokens of a sequence from position `after` on."""
        self._library.llama_memory_seq_rm(self._memory, sequence, after, -1)

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> np.ndarray:
        """Read tokens, each (token, position, sequence, whether its logits are wanted).

        Returns:
            logits [wanted, V] in float32, the library's own memory until the next call.
        """
        token, position, sequence, wanted = (
            np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), "iiib", strict=True)
        )
        count = np.ones(len(rows), np.int32)
        pointers = (sequence.ctypes.data + sequence.itemsize * np.arange(len(rows))).astype(np.uintp)
        arrays = (token, None, position, count, pointers, wanted)
        batch = _Batch(len(rows), *(None if array is None else array.ctypes.data for array in arrays))
        if (code := self._library.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode returned {code} for {len(rows)} tokens")
        logits = self._library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (int(wanted.sum()), self._vocab_size))


def _load(libraries: Path) -> ctypes.CDLL:
    """The library, with the kernels of llama.cpp that suit this processor best."""
    ctypes.CDLL(str(libraries / "libggml-base.so"), ctypes.RTLD_GLOBAL)
    ggml = ctypes.CDLL(str(libraries / f"libggml.{VERSION}.so"), ctypes.RTLD_GLOBAL)
    ggml.ggml_backend_load_all_from_path.argtypes = (c_char_p,)
    ggml.ggml_backend_load_all_from_path(str(libraries).encode())
    library = ctypes.CDLL(str(libraries / f"libllama.{VERSION}.so"))
    for name, result, arguments in (
        ("llama_backend_init", None, ()),
        ("llama_model_default_params", _Parameters, ()),
        ("llama_context_default_params", _Parameters, ()),
        ("llama_model_load_from_file", c_void_p, (c_char_p, _Parameters)),
        ("llama_init_from_model", c_void_p, (c_void_p, _Parameters)),
        ("llama_set_n_threads", None, (c_void_p, c_int32, c_int32)),
        ("llama_n_ctx", c_uint32, (c_void_p,)),
        ("llama_n_batch", c_uint32, (c_void_p,)),
        ("llama_n_seq_max", c_uint32, (c_void_p,)),
        ("llama_model_get_vocab", c_void_p, (c_void_p,)),
        ("llama_vocab_n_tokens", c_int32, (c_void_p,)),
        ("llama_get_memory", c_void_p, (c_void_p,)),
        ("llama_memory_seq_rm", c_uint8, (c_void_p, c_int32, c_int32, c_int32)),
        ("llama_decode", c_int32, (c_void_p, _Batch)),
        ("llama_get_logits", POINTER(c_float), (c_void_p,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
