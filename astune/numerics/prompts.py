"""What an engine may have read in place of the prompt that the record says: the usual ways to get a prompt wrong."""

from __future__ import annotations

from pathlib import Path

from astune.context_tracker.template import ChatTemplate
from astune.numerics.calls import RecordedCall
from astune.schema import Message


class OtherPrompts:
    """Variants of a recorded call's prompt, made with the model's own tokenizer and chat template.

    Args:
        bos_id: the token that the model's config names for beginnings, which many tokenizers add by themselves.
    """

    def __init__(self, folder: Path, bos_id: int | None) -> None:
        self._template = ChatTemplate.load(folder)
        self._front_ids = dict.fromkeys([*([bos_id] if bos_id is not None else []), *self._template.eos_ids])

    def variants(self, call: RecordedCall) -> dict[str, list[int]]:
        """Each variant's name and prompt ids, where it can be made and differs from the record."""
        ids = call.prompt_ids
        made = {
            "its first token missing": ids[1:],
            "its last token missing": ids[:-1],
            "its text tokenised again": self._template.encode(self._template.decode(ids)),
            "rendered again by the chat template": self._rendered(call.messages),
            "rendered again without the generation prompt": self._rendered(call.messages, generation=False),
            "its first message missing": ids[call.n_first :],
            "rendered again without the first message": self._rendered(call.messages[1:]),
            "only the last message, rendered again": self._rendered(call.messages[-1:]),
        }
        for token in self._front_ids:
            made[f"{self._template.decode([token])} in front"] = [token, *ids]
        return {name: variant for name, variant in made.items() if variant and variant != ids}

    def _rendered(self, messages: list[Message], *, generation: bool = True) -> list[int]:
        """Empty where the template refuses these messages, or there is none."""
        if not messages:
            return []
        try:
            return self._template.encode(self._template.render(messages, generation=generation))
        except Exception:  # a template is a program of the model's authors, and raises what it likes
            return []
