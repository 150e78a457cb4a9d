"""llama.cpp as a peer of our engine: its prebuilt library in a small loop with continuous batching.

    python -m benchmarks.llama_cpp_peer FOLDER_OF_LIBRARIES MODEL.gguf

A request takes the free sequence whose cached tokens begin most like its prompt, as llama.cpp's server does, so that
a shared beginning and an episode's first turn are read once. Tokens are drawn by our engine's sampler.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from astune.engine.local._sampling import sample
from astune.schema import SamplingParams
from benchmarks.libllama import LlamaContext
from benchmarks.peer_process import Asked, Drawn, serve

SEQUENCES = 64
TOKENS_A_SEQUENCE = 512
BATCH = 2048
_PARAMS = SamplingParams(max_tokens=1)  # which token is the last, the loop decides


@dataclass
class _Sequence:
    number: int
    cached: list[int] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    asked: Asked | None = None
    drawn: Drawn = field(default_factory=lambda: Drawn([], []))

    def common(self, prompt: list[int]) -> int:
        """How many tokens of the prompt need no reading; the last one is read for its logits."""
        pairs = enumerate(zip(self.cached, prompt[:-1], strict=False))
        return next((index for index, (one, other) in pairs if one != other), min(len(self.cached), len(prompt) - 1))


class LlamaCpp:
    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._sequences = [_Sequence(number) for number in range(SEQUENCES)]
        self._random = random.Random(0)

    @property
    def busy(self) -> bool:
        return any(sequence.asked for sequence in self._sequences)

    def add(self, asked: Asked) -> None:
        free = [sequence for sequence in self._sequences if sequence.asked is None]
        best = max(free, key=lambda sequence: sequence.common(asked.prompt))
        kept = best.common(asked.prompt)
        self._context.forget(best.number, kept)
        best.cached, best.unread = asked.prompt[:kept], asked.prompt[kept:]
        best.asked, best.drawn = asked, Drawn([], [])

    def step(self) -> list[tuple[int, Drawn]]:
        rows: list[tuple[int, int, int, bool]] = []
        ended: list[_Sequence] = []
        for sequence in self._sequences:
            piece = sequence.unread[: BATCH - len(rows)]
            if not piece:
                continue
            del sequence.unread[: len(piece)]
            for offset, token in enumerate(piece):
                last = not sequence.unread and offset == len(piece) - 1
                rows.append((token, len(sequence.cached) + offset, sequence.number, last))
            sequence.cached += piece
            if not sequence.unread:
                ended.append(sequence)
        logits = torch.from_numpy(self._context.decode(rows))
        sampled = sample(logits, [_PARAMS] * len(ended), [self._random] * len(ended)) if ended else []
        finished: list[tuple[int, Drawn]] = []
        for sequence, (token, logprob, _) in zip(ended, sampled, strict=True):
            sequence.drawn.token_ids.append(token)
            sequence.drawn.logprobs.append(logprob)
            if sequence.asked and len(sequence.drawn.token_ids) == sequence.asked.max_tokens:
                finished.append((sequence.asked.number, sequence.drawn))
                sequence.asked = None
            else:
                sequence.unread = [token]
        return finished


def main() -> None:
    libraries, model = map(Path, sys.argv[1:])
    threads = os.cpu_count() or 1
    context = LlamaContext(
        libraries, model, sequences=SEQUENCES, tokens=TOKENS_A_SEQUENCE, batch=BATCH, threads=threads
    )
    serve(LlamaCpp(context))


if __name__ == "__main__":
    main()
