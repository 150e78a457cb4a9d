"""Trinity's rollout models as an engine."""

from __future__ import annotations

import asyncio
from typing import Any

from astune.backbone.cluster.engine import BorrowedEngine, sampling_of
from astune.schema import Completion, EngineError, SamplingParams


class TrinityEngine(BorrowedEngine):
    """Engine over Trinity's `ModelWrapper`: prompts reach the model's Ray actor as token ids, and no text is read
    again.

    The version of an answer is the older one where the model got other weights meanwhile.
    """

    OWNER, SERVER = "Trinity", "model"

    def __init__(self, model: Any, *, max_model_len: int) -> None:
        super().__init__(max_model_len=max_model_len)
        self._model = model
        self._tokenizer_loaded = asyncio.Lock()
        self._ready = False

    async def _sample(self, prompt: list[int], params: SamplingParams, session: str) -> Completion:
        await self._load_tokenizer()
        version = await self._model.model_version_async
        [answer] = await self._model.generate_async(
            [{"prompt_token_ids": prompt}], **sampling_of(params), n=1, skip_special_tokens=False, logprobs=0
        )
        n_read = int(answer.prompt_length)
        if answer.tokens[:n_read].tolist() != prompt:
            raise EngineError(
                f"Trinity's model read {n_read} tokens and was sent {len(prompt)}", hint="this is a defect of astune"
            )
        token_ids, logprobs = answer.tokens[n_read:].tolist(), answer.logprobs.tolist()
        return self._completion(token_ids, logprobs, params, int(version))

    async def _load_tokenizer(self) -> None:
        """Trinity's model writes its answers as text, too, and loads what it needs for that with a first text."""
        async with self._tokenizer_loaded:
            if not self._ready:
                await self._model.get_message_token_len([{"role": "user", "content": ""}])
                self._ready = True
