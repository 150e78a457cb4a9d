"""A real model for `WeightsServer`: sampled from by our engine, and asked what it says by transformers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from engine_helpers import Weights, load, transformers_model
from token_server import listening
from torch import nn
from transformers import AutoTokenizer
from weights_server import WeightsServer

from astune.engine.base import EngineStats
from astune.schema import Completion, SamplingParams

_one_at_a_time = threading.Lock()
"""transformers loads no two models at once: servers have a thread each."""


class ServedModel:
    """What a `WeightsServer` needs of its engine."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self._dtype = getattr(torch, dtype)
        self._model = transformers_model(folder, self._dtype)
        self._engine = load(folder, dtype=dtype, max_model_len=512)
        self.open_session, self.close_session = self._engine.open_session, self._engine.close_session
        self.aclose = self._engine.aclose

    @torch.inference_mode()
    def said_of(self, token_ids: Sequence[int]) -> list[float]:
        ids = torch.tensor([list(token_ids)])
        logprob_TV = self._model(ids).logits[0, :-1].float().log_softmax(-1)
        return logprob_TV.gather(1, ids[0, 1:, None])[:, 0].tolist()

    async def read(self, folder: Path, *, keep_head: bool) -> None:
        with _one_at_a_time:
            model = transformers_model(folder, self._dtype)
        if keep_head:
            model.lm_head.weight = nn.Parameter(self._model.lm_head.weight.detach().clone())
        self._model = model
        await self._engine.load_weights(Weights(0, model))

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str) -> Completion:
        return await self._engine.generate(prompt_ids, params, session=session)

    def stats(self) -> EngineStats:
        return self._engine.stats()


def server_of(folder: Path, *, dtype: str = "float32") -> WeightsServer:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return WeightsServer(ServedModel(folder, dtype), encode=lambda text: tokenizer(text)["input_ids"])


@contextmanager
def model_served(folder: Path, *, dtype: str = "float32") -> Iterator[WeightsServer]:
    with listening(server_of(folder, dtype=dtype)) as server:
        yield server
