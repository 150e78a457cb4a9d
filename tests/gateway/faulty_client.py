"""A client of the gateway whose requests meet seeded faults and are sent again, as SDKs do. Standard library alone."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

FAULTS = ("dropped", "cut", "duplicated", "late")
_FAULTY_ATTEMPTS = 3
_ATTEMPTS = 10
_DEAD_ATTEMPTS = 6000
_PAUSE_S = 0.05


class FaultyClient:
    """Calls with faults before they succeed.

    Args:
        met: counts the faults.
        share: of the attempts that meet a fault.
        outlives: whether the gateway may die and come back; else an answer that breaks off is an error.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        rng: random.Random,
        met: Counter[str],
        *,
        share: float = 0.4,
        outlives: bool = False,
    ) -> None:
        self._address = urlsplit(base_url)
        self._key = key
        self._rng = rng
        self._met = met
        self._share = share
        self._outlives = outlives

    async def call(self, messages: list[Any], *, named: str | None, stream: bool) -> str:
        """The answer's text, after as many faults as the seed wants."""
        for attempt in range(_DEAD_ATTEMPTS if self._outlives else _ATTEMPTS):
            fault = self._rng.choice(FAULTS) if self._is_faulty(attempt) else "none"
            if fault == "duplicated" and (named is None or stream):
                fault = "none"
            self._met[fault] += 1
            sent = [self._send(messages, attempt, named, fault, stream=stream)]
            if fault == "duplicated":
                sent.append(self._send(messages, attempt, named, "none", stream=stream))
            *_, last = answers = await asyncio.gather(*sent)
            if last is not None:
                assert set(answers) <= ({last, None} if self._outlives else {last}), (
                    "what was sent twice has one answer"
                )
                return last
        raise AssertionError("the gateway does not answer")

    def _is_faulty(self, attempt: int) -> bool:
        return attempt < _FAULTY_ATTEMPTS and self._rng.random() < self._share

    async def _send(
        self, messages: list[Any], attempt: int, named: str | None, fault: str, *, stream: bool
    ) -> str | None:
        """None where the answer did not come."""
        try:
            return await self._exchange(messages, attempt, named, fault, stream=stream)
        except (OSError, EOFError, ValueError):
            if not self._outlives:
                raise
        self._met["gateway dead"] += 1
        await asyncio.sleep(_PAUSE_S)
        return None

    async def _exchange(
        self, messages: list[Any], attempt: int, named: str | None, fault: str, *, stream: bool
    ) -> str | None:
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        body = json.dumps({"model": "m", "messages": messages, "stream": stream}).encode()
        head = [
            "POST /v1/chat/completions HTTP/1.1",
            "host: 127.0.0.1",
            "connection: close",
            "content-type: application/json",
            f"authorization: Bearer {self._key}",
            f"content-length: {len(body)}",
            f"x-stainless-retry-count: {attempt}",
            *([f"idempotency-key: {named}"] if named else []),
        ]
        writer.write("\r\n".join([*head, "", ""]).encode())
        try:
            if fault == "late":
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(body)
            await writer.drain()
            if fault == "dropped":
                return None
            if fault == "cut":
                await reader.readexactly(20)
                return None
            said = (await reader.read()).decode()
        finally:
            writer.transport.abort()
        if not said:
            raise EOFError("the connection was closed before an answer")
        assert said.startswith("HTTP/1.1 200"), said
        return text_of(said, stream=stream)


def text_of(said: str, *, stream: bool) -> str:
    """The text of an answer. Raises ValueError where it breaks off."""
    if not stream:
        return json.loads(said.partition("\r\n\r\n")[2])["choices"][0]["message"]["content"]
    assert '"error"' not in said, said[-800:]
    if "data: [DONE]" not in said:
        raise ValueError("the stream breaks off")
    events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


async def converse(client: FaultyClient, name: str, n_calls: int, rng: random.Random, *, turns: int = 5) -> list[str]:
    """The answers' texts of conversations of `turns` calls, which go on from what the gateway answered."""
    said: list[str] = []
    messages: list[Any] = []
    for turn in range(n_calls):
        if turn % turns == 0:
            messages = [{"role": "user", "content": f"{name}, conversation {turn}"}]
        named = f"{name}-{turn}" if rng.random() < 0.5 else None
        said.append(await client.call(messages, named=named, stream=rng.random() < 0.4))
        messages = [*messages, {"role": "assistant", "content": said[-1]}, {"role": "user", "content": "Go on."}]
    return said
