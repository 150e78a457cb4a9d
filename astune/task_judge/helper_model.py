"""A model beside the one that is trained, which answers short questions: behind any OpenAI-compatible endpoint.

What it says is text; whoever asks decides what that is worth. No answer is a JudgeError.
"""

from __future__ import annotations

import asyncio
from typing import Any

from astune.engine.remote.endpoint import Endpoint, choice_of, key_from
from astune.schema import ConfigError, EngineError, JudgeError

_END_OF_THOUGHT = "</think>"


class HelperModel:
    """Answers questions, several at once.

    Args:
        base_url: the endpoint's address, as https://host/v1.
        api_key_env: the environment variable that holds its key.
        model: the model's name there; empty takes the first that it serves.
        max_concurrency: questions at once; more wait.
        budget_tokens: tokens of all questions and answers, as the endpoint counts them or else in characters, after
            which it is asked nothing more; None sets no limit.
        timeout_s: seconds that one answer may take, without the wait for its turn.
        temperature: 0 for the same answer to the same question; None leaves it to the endpoint.
        section: the part of the configuration that holds these, for errors.

    Raises:
        ConfigError: one of them cannot be.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key_env: str,
        model: str,
        max_concurrency: int,
        budget_tokens: int | None,
        timeout_s: float,
        temperature: float | None,
        section: str,
    ) -> None:
        for name, value in (("max_concurrency", max_concurrency), ("timeout_s", timeout_s)):
            if not value > 0:
                raise ConfigError(f"{section}.{name} is {value!r}", hint="set it above 0")
        self._endpoint = Endpoint(base_url, model=model, api_key=key_from(api_key_env, section), section=section)
        self._turn = asyncio.Semaphore(max_concurrency)
        self._budget_tokens = budget_tokens
        self._timeout_s = timeout_s
        self._temperature = temperature
        self._section = section
        self.used_tokens = 0

    async def ask(self, instruction: str, question: str) -> str:
        """Return its answer to `question` under the system prompt `instruction`, without its thoughts.

        Raises:
            JudgeError: it did not answer, was cut off, or its budget is used up.
        """
        if self._budget_tokens is not None and self.used_tokens >= self._budget_tokens:
            raise JudgeError(
                f"the judge model has used {self.used_tokens:,} tokens of its {self._budget_tokens:,}",
                hint=f"raise {self._section}.budget_tokens",
            )
        try:
            async with self._turn:
                return await self._answer(instruction, question)
        except EngineError as cause:
            raise JudgeError(f"the judge model failed: {cause.message}", hint=cause.hint) from cause

    async def _answer(self, instruction: str, question: str) -> str:
        body: dict[str, Any] = {
            "model": await self._endpoint.choose_model(),
            "messages": [{"role": "system", "content": instruction}, {"role": "user", "content": question}],
        }
        if self._temperature is not None:
            body["temperature"] = self._temperature
        answer = await self._endpoint.post("/chat/completions", body, timeout_s=self._timeout_s)
        choice = choice_of(answer, self._endpoint.root)
        message = choice.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        text = content if isinstance(content, str) else ""
        used = (answer.get("usage") or {}).get("total_tokens")
        self.used_tokens += used if isinstance(used, int) else len(instruction) + len(question) + len(text)
        said = text.rpartition(_END_OF_THOUGHT)[2].strip()
        if choice.get("finish_reason") == "length" or not said:
            raise EngineError(f"{self._endpoint.root} gave no whole answer: {text[-200:]!r}")
        return said
