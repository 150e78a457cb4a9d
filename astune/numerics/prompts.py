"""Prompts that an engine may have read instead of the recorded one: the usual errors in building a prompt."""

from __future__ import annotations

from pathlib import Path

from astune.numerics.calls import RecordedCall
from astune.renderers.template import ChatTemplate
from astune.schema import Message


class OtherPrompts:
    """Variants of a recorded call's prompt, made with the model's own tokenizer and chat template.

    Args:
        bos_id: the token that the model's config names for beginnings, which many tokenizers add by themselves.
    """

    def __init__(self, folder: Path, bos_id: int | None) -> None:
        self._template = ChatTemplate.load(folder)
        front_ids = [*([] if bos_id is None else [bos_id]), *self._template.eos_ids]
        self._front_ids = list(dict.fromkeys(front_ids))

    def variants(self, call: RecordedCall) -> dict[str, list[int]]:
        """Prompt ids by what was done to the prompt, where it can be done and changes anything."""
        ids = call.prompt_ids
        first = self._rendered(call.messages[:1], generation=False)
        made = {
            "without its first token": ids[1:],
            "without its last token": ids[:-1],
            "tokenised again from its text": self._template.encode(self._template.decode(ids)),
            "rendered again by the chat template": self._rendered(call.messages),
            "rendered again without the generation prompt": self._rendered(call.messages, generation=False),
            "without its first message": ids[len(first) :] if ids[: len(first)] == first else [],
            "rendered again without the first message": self._rendered(call.messages[1:]),
            "rendered again from the last message alone": self._rendered(call.messages[-1:]),
        }
        for token in self._front_ids:
            made[f"with {self._template.decode([token])} in front"] = [token, *ids]
        return {name: variant for name, variant in made.items() if variant and variant != ids}

    def _rendered(self, messages: list[Message], *, generation: bool = True) -> list[int]:
        """Empty where the template refuses these messages, or there is none."""
        if not messages:
            return []
        try:
            return self._template.encode(self._template.render(messages, generation=generation))
        except Exception:  # a template is a program of the model's authors, and raises what it likes
            return []
