"""A model call whose prompt was prepared and whose answer is not recorded yet."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from astune.context_tracker.conversation import Conversation
from astune.renderers.renderer import Rendered, Tool
from astune.renderers.settled import Settled
from astune.schema import Grammar, Message, stable_seed, tool_call_id


class CallSeeds:
    """Seeds of calls: what is asked, and how often it was. They are the same in whatever order agents ask."""

    def __init__(self) -> None:
        self._asked: Counter[int] = Counter()
        self._lock = threading.Lock()

    def next(self, *asked: Any) -> int:
        """The seed of the next answer to this."""
        seed = stable_seed(*asked)
        with self._lock:
            self._asked[seed] += 1
            return stable_seed(seed, self._asked[seed])


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call without its answer.

    `known` are the messages of the path to `parent`, `new` those after it, and `rendered` the tokens that these add.
    `rewritten` is True if the template now renders recorded history differently.
    """

    prompt_ids: list[int]
    agent: str
    trainable: bool
    parent: int | None
    known: list[Message]
    new: list[Message]
    rendered: Rendered
    tools: Sequence[Tool]
    rewritten: bool
    conversation: Conversation
    form: Grammar | None
    """Required form of the answer."""
    literal: bool
    """True if the answer is plain text, whatever the model's parser would find in it."""
    stop: Sequence[str]
    """Texts at which the answer ends."""
    call_seed: int
    """Seed of the ids of the answer's tool calls: known before the answer is, so that a call can be streamed."""
    asked_after: int
    """Number of answers at the time of the call."""

    def named(self, part: Settled) -> Settled:
        """The part with the ids of its calls."""
        calls = (call._replace(id=tool_call_id(self.call_seed, n)) for n, call in enumerate(part.calls))
        return part._replace(calls=tuple(calls))

    def tool_calls(self, calls: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        """The answer's calls, pairs of a name and arguments, as its message has them."""
        return [
            {
                "id": tool_call_id(self.call_seed, n),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for n, (name, arguments) in enumerate(calls)
        ]
