"""Renderer for any chat template: the tokens that messages add are the difference of two renders.

    before   <|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n
    after    <|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\nSure? ...

The model's own template is the only source of frames and control tokens; nothing is specific to a family. If `after`
does not begin with `before`, the template rewrites history, and nothing can be added to the sampled tokens. The
template is checked for this when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache, partial
from itertools import takewhile

from astune.renderers import forced_calls, plain_tools
from astune.renderers.beginnings import common_beginning
from astune.renderers.families import reader_for, without_last
from astune.renderers.message_ends import MARK, ends_by_marks, ends_by_search
from astune.renderers.messages import in_roles_of, is_plain, is_whole_in, meaning_of
from astune.renderers.probes import CALLED, FREE_PROBES, PROBES, QUESTION, TOOL
from astune.renderers.renderer import Rendered, Reply, Tool
from astune.renderers.settled import Settled, endings_of, settled_by_probing, settled_text
from astune.renderers.tagged_calls import TaggedCalls
from astune.renderers.template import ChatTemplate
from astune.renderers.token_bytes import vocabulary_of
from astune.schema import ConfigError, Grammar, Message, Vocabulary, WorkflowError

_KEPT_GRAMMARS = 64
"""Cached grammars of forced calls; deriving one takes two renders per tool, and agents offer the same tools again."""
_HINT = "use a model whose chat template writes a conversation front to back, such as SmolLM2 or Qwen2.5 Instruct"
_NO_TOOLS_HINT = "set rollout.agentscope_disable_toolcalls: True, or give the agent no tools (toolkit=None)"


@dataclass(frozen=True, slots=True)
class _Text:
    """A rendered conversation, in which `ends[i]` is where the content of message i ends."""

    text: str
    ends: list[int]


class TemplateRenderer:
    """Extends conversations of a template; see the module's docstring."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._arguments_as_text = False
        self._frames: dict[str, tuple[str, str]] = {}
        self._call_grammar = lru_cache(maxsize=_KEPT_GRAMMARS)(self._derive_call_grammar)
        try:
            self._derive()
            self._verify()
        except ConfigError:
            raise
        except Exception as cause:  # a template may raise anything
            raise ConfigError(
                f"model.path: the chat template of {template.name} cannot render a plain conversation: "
                f"{type(cause).__name__}: {cause}",
                hint=_HINT,
            ) from cause

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stop_token_ids

    def on(self, day: date) -> TemplateRenderer:
        template = self._template.on(day)
        if template is self._template:
            return self
        there = copy(self)
        there._template = template
        return there

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Rendered:
        self._require_readable(messages, tools)
        return self._cut(self._rendered(*self._spoken(messages, tools)), 0, 0, [])

    def extend(
        self, history: Sequence[Message], sampled_ids: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]
    ) -> Rendered | None:
        self._require_readable(new, tools)
        if self._frames_alone and not tools and all(map(is_plain, [history[-1], *new])):
            whole = self._framed(self._template.guarded(list(new)))
            closing, skipped = self._closing(sampled_ids, self._end, whole.text)
            return self._cut(whole, skipped, 0, closing)
        conversation, known_tools = self._spoken([*history, *new], tools)
        known = len(history)
        asked, before, answer = self._answered(conversation[:known], known_tools)
        whole = self._rendered(conversation, known_tools)
        written = asked + self.text(sampled_ids) + self._end
        if before.startswith(asked) and whole.text.startswith(before) and is_whole_in(answer, conversation[known - 1]):
            start = len(before)
        elif whole.text.startswith(written):  # a template may spell a last answer differently, and keep this one
            start, answer = len(written), self._end
        else:
            return None
        closing, skipped = self._closing(sampled_ids, answer, whole.text[start:])
        return self._cut(whole, start + skipped, known, closing)

    def parse(self, sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        if self._knows_tools or not tools:
            try:
                return self._reader.read(sampled_ids, prompt_ids, tools)
            except (RecursionError, ValueError):  # nested too deep, or a number of more digits than Python reads
                text = self.text(sampled_ids)
                return Reply(text, malformed=[text])
        reply = self._reader.read(sampled_ids, prompt_ids, ())
        return replace(plain_tools.read(reply.content), reasoning=reply.reasoning)

    def settled(
        self, sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool], *, calls: bool = False
    ) -> Settled:
        if self._reader.plain and not tools:
            return Settled(content=settled_text(self.text(sampled_ids)))

        if calls and tools and self._tagged_calls is not None:
            read = partial(self.parse, prompt_ids=prompt_ids, tools=[*tools, TOOL])  # the probe may be called
            answered = without_last(sampled_ids, self._stop_token_ids)
            if (part := self._tagged_calls.settled(read, answered, self._endings)) is not None:
                return part
        answer_ids = takewhile(lambda token: token not in self._dividing_ids, sampled_ids)
        read = partial(self.parse, prompt_ids=prompt_ids, tools=tools)
        return settled_by_probing(read, list(answer_ids), self._endings)

    def text(self, sampled_ids: Sequence[int]) -> str:
        return self.decode(without_last(sampled_ids, self._stop_token_ids))

    def call_grammar(self, tools: Sequence[Tool]) -> Grammar:
        self._require_readable((), tools)
        return self._call_grammar(json.dumps(list(tools)))

    def _derive_call_grammar(self, tools: str) -> Grammar:
        return Grammar("lark", forced_calls.lark(json.loads(tools), self._pieces_of_call, self._template.name))

    def _pieces_of_call(self, message: Message, tools: Sequence[Tool]) -> list[str | int]:
        """An answer as text and control tokens, up to the one that ends it."""
        _, _, answer = self._answered(*self._spoken([*QUESTION, message], tools))
        return list(takewhile(lambda piece: piece not in self._stop_token_ids, self._template.pieces(answer)))

    def answer_ids(self, history: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The last message of `history` as tokens that the model would have sampled, as the template writes it."""
        _, _, answer = self._answered(*self._spoken(history, tools))
        if self._end and answer.endswith(self._end):
            return [*self._template.encode(answer.removesuffix(self._end)), self._end_ids[0]]
        return self._template.encode(answer)

    def is_longer(self, text: str, tokens: int) -> bool:
        return self._template.is_longer(text, tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._template.decode(token_ids)

    def vocabulary(self) -> Vocabulary:
        return vocabulary_of(self._template.tokenizer)

    def _answered(self, conversation: Sequence[Message], tools: Sequence[Tool]) -> tuple[str, str, str]:
        """Return the generation prompt of the last message, the render that ends with it, and the answer's part of that
        render."""
        asked = self._plain_text(conversation[:-1], tools, generation=True)
        before = self._plain_text(conversation, tools)
        return asked, before, self._template.following(before, asked)

    def _framed(self, messages: Sequence[Message]) -> _Text:
        """Render messages and the generation prompt if every message has its own frame."""
        text = ""
        ends: list[int] = []
        for message in messages:
            opening, closing = self._frame(message["role"])
            ends.append(len(text) + len(opening) + len(message["content"]))
            text = f"{text}{opening}{message['content']}{closing}"
        return _Text(text + self._generation, ends)

    def _frame(self, role: str) -> tuple[str, str]:
        """Return the text around the content of every message of this role."""
        if role not in self._frames:
            marked = self._plain_text([*QUESTION, {"role": role, "content": MARK}], ())
            opening, mark, closing = marked[len(self._plain_text(QUESTION, ())) :].partition(MARK)
            if not mark:
                raise self._left_out(role, "")
            self._frames[role] = opening, closing
        return self._frames[role]

    def _cut(self, whole: _Text, start: int, known: int, closing: list[int]) -> Rendered:
        """Split the tokens of the text from `start` on after each message's content; its closing belongs to the
        next."""
        token_ids, starts = self._template.encode_with_offsets(whole.text[start:])
        deltas: list[list[int]] = []
        position = 0
        for end in whole.ends[known:]:
            following = next((i for i in range(position, len(starts)) if starts[i] >= end - start), len(starts))
            deltas.append(token_ids[position:following])
            position = following
        parts = [*deltas, token_ids[position:]]
        parts[0] = closing + parts[0]
        return Rendered(parts[:-1], parts[-1])

    def _rendered(self, conversation: Sequence[Message], tools: Sequence[Tool]) -> _Text:
        """The conversation with its generation prompt."""
        text = self._plain_text(conversation, tools, generation=True)
        ends = ends_by_marks(conversation, text, lambda marked: self._plain_text(marked, tools, generation=True))
        return _Text(text, ends or ends_by_search(conversation, text, self._left_out))

    def _plain_text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generation: bool = False) -> str:
        """Render messages and tools that are `_spoken`."""
        if not messages:
            return ""
        try:
            return self._template.render(plain_tools.folded(messages), tools, generation=generation)
        except Exception as cause:  # a template may raise anything
            raise WorkflowError(
                f"the chat template of {self._template.name} cannot express the conversation: {cause}",
                hint=f"its roles are {', '.join(message['role'] for message in messages[-8:])} at the end",
            ) from cause

    def _spoken(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[list[Message], list[Tool]]:
        """Return messages and tools in the form that the template accepts."""
        known = in_roles_of(self._template.source, messages)
        guarded_tools = self._template.guarded(list(tools))
        if not self._knows_tools:
            return plain_tools.spoken(self._template.guarded(known), guarded_tools), []
        # Arguments are read first: the JSON of a control token's name may be spelled in escapes.
        return self._template.guarded([self._with_arguments(message) for message in known]), guarded_tools

    def _with_arguments(self, message: Message) -> Message:
        spoken = dict(message)
        if message.get("reasoning_content") and not (message["content"] and message.get("tool_calls")):
            spoken["thinking"] = message["reasoning_content"]  # what gpt-oss calls it, and takes beside a call alone
        if message.get("tool_calls") and not self._arguments_as_text:
            spoken["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": meaning_of(call["function"]["arguments"])}}
                for call in message["tool_calls"]
            ]
        return spoken

    def _closing(self, sampled_ids: Sequence[int], answer: str, following: str) -> tuple[list[int], int]:
        """Return what ends the turn after the sampled tokens, and how much of the following text they already
        contain."""
        last = sampled_ids[-1] if sampled_ids else None
        if last in self._stop_token_ids:
            name = self._template.decode([last])
            if answer.endswith(name):
                return [], 0
            if following.startswith(name):  # the answer already contains the opening of the next turn
                return [], len(name)
        ended = bool(self._end_ids) and last == self._end_ids[0]
        return (self._end_ids[1:] if ended else list(self._end_ids)), 0

    def _require_readable(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        if any(message.get("images") for message in messages):
            raise WorkflowError(
                f"a message holds an image, but {self._template.name} is run as a model that reads only text",
                hint="describe the image in words",
            )
        if tools and not self._reads_calls:
            raise WorkflowError(
                f"the agent offers {len(tools)} tools, but the calls that {self._template.name} is trained to write "
                "cannot be read",
                hint=_NO_TOOLS_HINT,
            )

    def _derive(self) -> None:
        """Derive the generation prompt, the end of a turn, the stop tokens, and the template's tool support."""
        render, encode = self._template.render, self._template.encode
        asked = render(QUESTION)
        generation = render(QUESTION, generation=True)
        if not generation.startswith(asked):
            raise self._refusal("its generation prompt does not follow a distinct end of turn", asked, generation)
        self._generation = generation = generation[len(asked) :]
        answered = render([*QUESTION, {"role": "assistant", "content": MARK}])
        before, mark, end = self._template.following(answered, asked).partition(MARK)
        if not mark:
            raise self._refusal("it does not repeat an assistant's content as it was", MARK, before)
        if not generation and before.strip():
            raise self._refusal("it has no generation prompt", before, "")
        if not before.startswith(generation) and not generation.startswith(before):
            raise self._refusal(
                "it opens an answer in the history differently from one to generate", generation, before
            )
        self._end = end
        self._end_ids = encode(end)
        start = [token for token in encode(generation)[:1] if token in self._template.added_ids]
        if start and self._writes_within_answers(self.decode(start)):
            start = []
        self._stop_token_ids = tuple(dict.fromkeys([*self._end_ids[:1], *self._template.eos_ids, *start]))
        if self._end_ids and self._end_ids[0] not in self._template.added_ids:
            raise self._refusal("an answer does not end with a distinct token", "an end-of-turn token", end)
        self._knows_tools = self._find_tools()
        self._frames_alone = self._find_framing(generation, end)
        self._reader = reader_for(self._template, self._stop_token_ids)
        self._reads_calls = not self._knows_tools or self._finds_probe_call()
        called = self._probe_call()
        self._endings = endings_of(encode, called)
        as_letters = self._reader.plain or not self._knows_tools
        self._tagged_calls = TaggedCalls.find(self._template, called, as_letters=as_letters)
        thoughts = {token for mark in ("<think>", "</think>") for token in encode(mark)}
        self._dividing_ids = self._template.added_ids - thoughts

    def _writes_within_answers(self, name: str) -> bool:
        """Return whether an answer that holds a thought, or a call, holds this token more than once."""
        asked = self._template.render(QUESTION)
        thought = {"role": "assistant", "content": "2", "reasoning_content": "1+1", "thinking": "1+1"}
        for answer in (thought, self._with_arguments({**CALLED, "reasoning_content": "1+1"})):
            try:
                answered = self._template.render([*QUESTION, answer])
            except Exception:  # it cannot express this one
                continue
            if self._template.following(answered, asked).count(name) > 1:
                return True
        return False

    def _find_tools(self) -> bool:
        """Return whether the template describes tools and writes calls; also find the type of arguments that it
        expects."""
        try:
            if self._template.render(QUESTION, [TOOL]) == self._template.render(QUESTION):
                return False
        except Exception:  # it cannot even take them
            return False
        for self._arguments_as_text in (False, True):
            try:
                if "probe" in self._template.render([*QUESTION, self._with_arguments(CALLED)]):
                    return True
            except Exception:  # it expects the other type
                continue
        return False

    def _finds_probe_call(self) -> bool:
        asked = self._template.render(QUESTION, [TOOL], generation=True)
        called = self._template.render([*QUESTION, self._with_arguments(CALLED)], [TOOL])
        answer = self._template.following(called, asked)
        encode = self._template.encode
        try:
            reply = self.parse(encode(answer), encode(asked), [TOOL])
        except Exception:  # a reader of another family
            return False
        return [(name, json.loads(arguments)) for name, arguments in reply.tool_calls] == [("probe", {"depth": 7})]

    def _probe_call(self) -> str | None:
        """An answer that calls the probe; None if the template cannot express a call."""
        try:
            return self._answered(*self._spoken([*QUESTION, CALLED], [TOOL]))[2]
        except Exception:  # a template may raise anything
            return None

    def _find_framing(self, generation: str, end: str) -> bool:
        """Return whether every message has its own frame, independent of the others."""
        alone = self._template.render(QUESTION)
        try:
            for probe in [*PROBES, *FREE_PROBES]:
                for n in range(1, len(probe)):
                    opening, closing = self._frame(probe[n]["role"])
                    framed = opening + probe[n]["content"] + closing
                    if self._template.render([*QUESTION, probe[n]]) != alone + framed:
                        return False
                    if self._template.render(probe[: n + 1]) != self._template.render(probe[:n]) + framed:
                        return False
            if self._frame("assistant") != (generation, end):
                return False
        except Exception:  # roles that must alternate, or are dropped
            return False
        return True

    def _verify(self) -> None:
        """Extend probes, answer by answer, and compare with full renders.

        Raises:
            ConfigError: they differ; the message shows where.
        """
        render, encode = self._template.render, self._template.encode
        for probe in PROBES:
            for n in range(2, len(probe), 2):
                before, whole = render(probe[:n]), render(probe[: n + 1], generation=True)
                sampled = [*encode(probe[n - 1]["content"]), *self._end_ids[:1]]
                added = self.extend(probe[:n], sampled, probe[n : n + 1], ())
                if added is None or not whole.startswith(before):
                    continue  # it rewrites history here, which makes a branch
                extended = [*encode(before), *added.token_ids[max(0, len(self._end_ids) - 1) :]]
                if extended != encode(whole):
                    raise self._refusal("a conversation extended turn by turn differs", whole, self.decode(extended))

    def _left_out(self, role: str, content: str) -> WorkflowError:
        return WorkflowError(
            f"the chat template of {self._template.name} leaves out a {role} message, or changes it: {content[:60]!r}",
            hint="use another role, or another model",
        )

    def _refusal(self, what: str, expected: str, found: str) -> ConfigError:
        at = common_beginning(expected, found)
        window = slice(max(0, at - 20), at + 40)
        return ConfigError(
            f"model.path: the chat template of {self._template.name} cannot be extended turn by turn: {what}; "
            f"expected {expected[window]!r}, found {found[window]!r}",
            hint=_HINT,
        )
