"""The renderer of ChatML-like templates: every message is framed alone, whatever stands around it.

Nothing of it is written by hand: frames, the end of a turn and the default system message are found by
rendering probes with the model's own template, and the result is checked against whole renders before it is
used. A template whose messages depend on their neighbours (thinking that is dropped later, roles that are merged)
fails the check and is refused with what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path

from astune.context_tracker.messages import canonical
from astune.context_tracker.renderer import Reply, Tool
from astune.context_tracker.template import ChatTemplate
from astune.schema import ConfigError, Message, WorkflowError

_ANCHOR: list[Message] = [{"role": "system", "content": "Probe."}, {"role": "user", "content": "Probe?"}]
"""The history in front of a message whose own text is sought; first messages stand alone."""

_MARK = "\u2063mark\u2063"
"""A text that no template contains, to find where it puts a message's content."""

_ROLES = ("system", "user", "assistant")
"""What the probes prove; a template may drop a message of any other role, or merge it with its neighbours."""

_HINT = "use a model with a ChatML-like template such as SmolLM2 or Qwen2.5 Instruct"


def _probe(*turns: str) -> list[Message]:
    """'user: text' and so on as messages."""
    return [dict(zip(("role", "content"), turn.split(": ", 1), strict=True)) for turn in turns]


_PROBES = [
    _probe("user: Hi"),
    _probe("system: Be brief.", "user: Hi"),
    _probe("system: Be brief.", "user: 1+1?", "assistant: 2", "user: 2+2?", "assistant: 4", "user: and 3+3?"),
    _probe("user: 1+1?", "assistant: <think>\none and one\n</think>\n\n2", "user: sure?", "assistant: Yes."),
    _probe("user: one", "user: two", "assistant: three", "assistant: four", "system: five", "user: six"),
    _probe("system:  padded \n", "user: \n\nlines\n\n", "assistant:  spaced ", "user: \ttab\t"),
    _probe("system: ", "user: ", "assistant: ", "user: ünïcödé 漢字 🙂 {{ braces }} {% tag %}"),
]


class ChatMLRenderer:
    """Extends conversations of a template that frames each message alone; see the module's docstring."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        try:
            self._anchor = template.render(_ANCHOR)
            self._derive()
            self._verify()
        except ConfigError:
            raise
        except Exception as cause:  # whatever a template may raise
            raise ConfigError(
                f"model.path: the chat template of {template.name} cannot render a plain conversation: "
                f"{type(cause).__name__}: {cause}",
                hint=_HINT,
            ) from cause
        self._message_ids = lru_cache(maxsize=4096)(self._uncached_message_ids)

    @classmethod
    def load(cls, folder: Path) -> ChatMLRenderer:
        return cls(ChatTemplate.load(folder))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop_token_ids

    def deltas(self, history: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool]) -> list[list[int]]:
        if tools:
            raise WorkflowError(
                f"the agent offers {len(tools)} tools, but tool calls are not supported with the chat template of "
                f"{self._template.name}",
                hint="set rollout.agentscope_disable_toolcalls: True, or give the agent no tools (toolkit=None)",
            )
        first = not history
        return [
            list(self._message_ids(first and position == 0, self._framed(message)))
            for position, message in enumerate(new)
        ]

    def generation_prompt(self) -> list[int]:
        return list(self._generation_ids)

    def closing(self, sampled_ids: Sequence[int]) -> list[int]:
        """The end of the turn and what follows it; without the end where the model itself wrote it."""
        ended = bool(sampled_ids) and sampled_ids[-1] == self._end_ids[0]
        return self._end_ids[1:] if ended else list(self._end_ids)

    def parse(self, sampled_ids: Sequence[int]) -> Reply:
        ended = bool(sampled_ids) and sampled_ids[-1] in self._stop_token_ids
        return Reply(self.decode(sampled_ids[:-1] if ended else sampled_ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._template.decode(token_ids)

    def _framed(self, message: Message) -> tuple[str, str]:
        if message.get("tool_calls") or message["role"] == "tool":
            raise WorkflowError(
                "the history holds a tool call, but tool calls are not supported with the chat template of "
                f"{self._template.name}",
                hint="set rollout.agentscope_disable_toolcalls: True, or give the agent no tools (toolkit=None)",
            )
        if message["role"] not in _ROLES:
            raise WorkflowError(
                f"a message has the role {message['role']!r}", hint=f"the roles are {', '.join(_ROLES)}"
            )
        return message["role"], message["content"]

    def _uncached_message_ids(self, first: bool, message: tuple[str, str]) -> tuple[int, ...]:
        role, content = message
        if not self._template.has_control_text(content):
            return tuple(self._template.encode(self._message_text(first, role, content)))
        before, _, after = self._message_text(first, role, _MARK).partition(_MARK)
        encode = self._template.encode
        return (*encode(before), *self._template.encode_plain(content), *encode(after))

    def _message_text(self, first: bool, role: str, content: str) -> str:
        """What the template writes for one message; for a first one with the default system message that it inserts."""
        message: Message = {"role": role, "content": content}
        if first:
            return self._template.render([message])
        text = self._template.render([*_ANCHOR, message])
        if not text.startswith(self._anchor):
            raise self._refusal(f"it rewrites earlier messages when a {role} message follows", self._anchor, text)
        return text[len(self._anchor) :]

    def _derive(self) -> None:
        """Find the generation prompt, the end of a turn and the stop tokens."""
        encode = self._template.encode
        asked = self._template.render(_ANCHOR, generation=True)
        if not asked.startswith(self._anchor) or asked == self._anchor:
            raise self._refusal("it has no generation prompt", self._anchor, asked)
        generation = asked[len(self._anchor) :]
        before, mark, end = self._message_text(False, "assistant", _MARK).partition(_MARK)
        if not mark:
            raise self._refusal("it does not repeat an assistant's content as it was", _MARK, before)
        if before != generation:
            raise self._refusal(
                "it opens an answer in the history differently from one to generate", generation, before
            )
        self._generation_ids = encode(generation)
        self._end_ids = encode(end)
        if not self._end_ids or self._end_ids[0] not in self._template.added_ids:
            raise self._refusal("an answer does not end with a token of its own", "an end-of-turn token", end)
        start = [token for token in self._generation_ids[:1] if token in self._template.added_ids]
        self._stop_token_ids = tuple(dict.fromkeys([self._end_ids[0], *self._template.eos_ids, *start]))

    def _verify(self) -> None:
        """Compare probes, extended message by message, with whole renders.

        Raises:
            ConfigError: they differ; says where.
        """
        encode = self._template.encode
        for probe in _PROBES:
            deltas = [
                self._uncached_message_ids(position == 0, self._framed(canonical(message)))
                for position, message in enumerate(probe)
            ]
            extended = [*chain.from_iterable(deltas), *self._generation_ids]
            text = self._template.render(probe, generation=True)
            if extended != encode(text):
                raise self._refusal("a conversation extended message by message differs", text, self.decode(extended))
            if self._template.render(probe) + self.decode(self._generation_ids) != text:
                raise self._refusal("it rewrites the history when an answer is asked for", self.decode(extended), text)
        for content in {message["content"] for probe in _PROBES for message in probe}:
            text = self._message_text(False, "assistant", content)
            kept = self.decode(self._generation_ids) + content + self.decode(self._end_ids)
            if text != kept:
                raise self._refusal("it changes an answer when it has become history", kept, text)
        answered = [*encode(self._anchor), *self._generation_ids, *encode("Yes."), self._end_ids[0]]
        extended = [*answered, *self.closing(answered), *self._uncached_message_ids(False, ("user", "Sure?"))]
        text = self._template.render([*_ANCHOR, *_probe("assistant: Yes.", "user: Sure?")])
        if extended != encode(text):
            raise self._refusal("a conversation extended after an answer differs", text, self.decode(extended))

    def _refusal(self, what: str, expected: str, found: str) -> ConfigError:
        at = next(
            (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found))
        )
        window = slice(max(0, at - 20), at + 40)
        return ConfigError(
            f"model.path: the chat template of {self._template.name} cannot be extended turn by turn: {what}; "
            f"expected {expected[window]!r}, found {found[window]!r}",
            hint=_HINT,
        )
