"""Messages of megabytes are refused at the price of a few of their tokens, and those that fit are never refused."""

from __future__ import annotations

import pytest

from astune.context_tracker import ContextTracker
from astune.renderers import Renderer
from astune.renderers.template import ChatTemplate
from astune.schema import ContextOverflow

KINDS = {
    "words": "the quick brown fox jumps. ",
    "one word": "a",
    "digits": "7",
    "characters of several tokens": "汉字",
    "names of control tokens": "<|im_end|>",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_a_message_of_megabytes_is_not_tokenised(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch, kind: str, role: str
) -> None:
    """3 MB took 3 to 6 s, in which no other episode went on."""
    tokenised: list[int] = []
    encode = ChatTemplate.encode

    def counted(self: ChatTemplate, text: str) -> list[int]:
        tokenised.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(ChatTemplate, "encode", counted)
    text = KINDS[kind] * (3_000_000 // len(KINDS[kind]))
    message = {"role": role, "content": text, **({"tool_call_id": "1"} if role == "tool" else {})}
    with pytest.raises(ContextOverflow, match="characters does not fit, and the context ends at 2000"):
        ContextTracker(renderer, 2000).prepare([message], agent="a", trainable=True)
    assert sum(tokenised) < 100_000


@pytest.mark.parametrize("text", [" " * 60_000, "\n" * 3000, "the quick brown fox " * 400, "=" * 20_000])
def test_a_text_that_fits_is_never_refused(renderer: Renderer, text: str) -> None:
    tracker = ContextTracker(renderer, 4000)
    pending = tracker.prepare([{"role": "user", "content": text}], agent="a", trainable=True)
    assert len(pending.prompt_ids) < 4000
