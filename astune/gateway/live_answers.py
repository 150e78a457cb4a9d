"""Answers while they are sampled: written from the engine's thread, read on the gateway's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from astune.renderers.settled import Settled, SettledCall


class LiveAnswer:
    """An answer that is being sampled.

    Args:
        on_change: called, on any thread, when there is more of it.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.read_tokens = 0
        """Tokens of the prompt."""
        self._on_change = on_change
        self._token_ids: list[int] = []
        self._read: Callable[[Sequence[int]], Settled] | None = None
        self._cancel: Callable[[], object] | None = None

    def begin(self, read_tokens: int, read: Callable[[Sequence[int]], Settled], cancel: Callable[[], object]) -> None:
        """The prompt is accepted.

        Args:
            read: returns the settled part of sampled tokens.
            cancel: ends the sampling; called on any thread.
        """
        self.read_tokens = read_tokens
        self._read, self._cancel = read, cancel

    def feed(self, token: int) -> bool:
        """Record the next token, on any thread; an `OnToken` that never ends the answer."""
        self._token_ids.append(token)
        self._on_change()
        return False

    @property
    def begun(self) -> bool:
        """Whether a token is there."""
        return bool(self._token_ids)

    def settled(self) -> Settled:
        return self._read(self._token_ids[:]) if self._read is not None and self._token_ids else Settled()

    def cancel(self) -> None:
        if self._cancel is not None:
            self._cancel()


class LiveAnswers:
    """The answers to one request; made, and waited for, on the gateway's event loop."""

    def __init__(self, n: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.version = 0
        """Counts the changes."""
        self.each = [LiveAnswer(self.notify) for _ in range(n)]

    def notify(self) -> None:
        """Wake those who wait, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._count)
        except RuntimeError:  # the gateway is closed: nobody waits
            return

    async def change(self, seen: int) -> None:
        """Wait for more of an answer than there was at the version `seen`, which is read before the answers are."""
        while self.version == seen:
            await self._changed.wait()

    def _count(self) -> None:
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class CallPiece(NamedTuple):
    """More of a call; `begun` is the call where this is its first piece, and then `arguments` its first ones."""

    number: int
    arguments: str
    begun: SettledCall | None


class Rest(NamedTuple):
    """The rest of an answer, to be sent in this order."""

    reasoning: str = ""
    content: str = ""
    calls: Sequence[CallPiece] = ()


class Sent:
    """The part of an answer that its agent was sent."""

    def __init__(self) -> None:
        self._sent = Settled()

    def rest(self, part: Settled, *, ended: bool) -> Rest:
        """Return what is new in a longer part, which counts as sent from now on.

        Args:
            ended: whether this is the whole answer. Of an unfinished one less may be settled than before.

        Raises:
            RuntimeError: it takes back what was sent; a defect of the renderer.
        """
        sent = self._sent
        if not _begins(part, sent):
            if not ended and _begins(sent, part):
                return Rest()
            raise RuntimeError(f"an answer does not begin with what was streamed of it: {sent} and {part}")
        self._sent = part
        known = [call.arguments for call in sent.calls]
        pieces = (
            CallPiece(n, call.arguments[len(known[n]) :], None)
            if n < len(known)
            else CallPiece(n, call.arguments, call)
            for n, call in enumerate(part.calls)
        )
        more = [piece for piece in pieces if piece.arguments or piece.begun is not None]
        return Rest(part.reasoning[len(sent.reasoning) :], part.content[len(sent.content) :], more)


def _begins(part: Settled, sent: Settled) -> bool:
    """Return whether the part begins with what was sent."""
    return (
        part.reasoning.startswith(sent.reasoning)
        and part.content.startswith(sent.content)
        and len(part.calls) >= len(sent.calls)
        and all(
            (now.id, now.name) == (before.id, before.name) and now.arguments.startswith(before.arguments)
            for now, before in zip(part.calls, sent.calls, strict=False)
        )
    )
