"""Images are part of a message's identity, by their hash."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pytest
from passing_renderer import PassingRenderer

from astune.context_tracker import ContextTracker
from astune.renderers import Renderer, canonical
from astune.renderers.messages import text_of
from astune.renderers.renderer import Rendered, Tool
from astune.schema import Completion, Message, WorkflowError

CAT, DOG = (base64.b64encode(name * 9).decode() for name in (b"cat", b"dog"))
ADDRESS = "https://pictures.org/cat.png"


def openai(image: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}


def agentscope(image: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}


def asked(*blocks: Any) -> Message:
    return {"role": "user", "content": list(blocks)}


class Sighted(PassingRenderer):
    """Stands for the renderer of a model that sees, which no engine here runs: it writes images as their hashes."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Rendered:
        return super().render([_described(message) for message in messages], tools)

    def extend(
        self, history: Sequence[Message], sampled_ids: Sequence[int], new: Sequence[Message], tools: Sequence[Tool]
    ) -> Rendered | None:
        known, added = ([_described(message) for message in part] for part in (history, new))
        return super().extend(known, sampled_ids, added, tools)


def _described(message: Message) -> Message:
    images = "".join(f"[{place} {digest}]" for place, digest in message.get("images", ()))
    return {"role": message["role"], "content": images + message["content"]}


@pytest.mark.parametrize(
    ("block", "other"),
    [
        (openai(CAT), agentscope(CAT)),
        (openai(ADDRESS) | {"image_url": ADDRESS}, {"type": "image_url", "image_url": {"url": ADDRESS}}),
        ({"image": ADDRESS}, {"type": "image", "source": {"type": "url", "url": ADDRESS}}),
    ],
)
def test_one_image_in_several_forms_is_one_image(block: Any, other: Any) -> None:
    message = canonical(asked({"type": "text", "text": "What is it?"}, block))
    assert message == canonical(asked("What is it?", other))
    assert (message["content"], [place for place, _ in message["images"]]) == ("What is it?", [11])
    assert canonical(asked(block, "What is it?")) != message, "the model reads the image first"
    assert canonical(asked("What is it?", openai(DOG))) != message


def test_an_image_stands_where_its_text_says_however_the_text_is_cut() -> None:
    assert canonical(asked("a", "b", openai(CAT))) == canonical(asked("a\nb", openai(CAT)))
    assert canonical(asked("a", openai(CAT), "b\nc")) != canonical(asked("a\nb", openai(CAT), "c"))


def test_the_detail_in_which_an_image_is_read_counts() -> None:
    low, high = (openai(CAT)["image_url"] | {"detail": detail} for detail in ("low", "high"))
    assert canonical(asked({"type": "image_url", "image_url": low})) != canonical(
        asked({"type": "image_url", "image_url": high})
    )


def test_a_text_with_an_empty_image_beside_it_is_a_text() -> None:
    assert canonical(asked({"type": "text", "text": "hi", "image": ""})) == {"role": "user", "content": "hi"}


def test_where_only_text_can_stand_an_image_is_refused() -> None:
    with pytest.raises(WorkflowError, match="only text"):
        text_of([{"type": "text", "text": "Look:"}, openai(CAT)])


def test_base64_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(WorkflowError, match="invalid base64"):
        canonical(asked(openai("???")))


def test_another_image_is_another_branch_and_the_same_one_goes_on(renderer: Renderer) -> None:
    tracker = ContextTracker(Sighted(renderer), 1 << 20)

    def call(*messages: Message) -> tuple[int | None, Message]:
        pending = tracker.prepare(messages, agent="agent", trainable=True)
        completion = Completion([100, renderer.stop_token_ids[0]], [-0.5, -0.1], "stop", 0)
        return pending.parent, tracker.commit(pending, completion)

    first, answer = call(asked("What is it?", openai(CAT)))
    on, _ = call(asked("What is it?", agentscope(CAT)), answer, asked("Sure?"))
    aside, _ = call(asked("What is it?", openai(DOG)), answer, asked("Sure?"))
    assert (first, on, aside) == (None, 1, None)
    nodes = tracker.forest.nodes
    assert [node.fork_cause for node in nodes if node.parent is None] == [None, "message edited"]
    assert nodes[0].images != nodes[4].images
    assert nodes[0].token_ids != nodes[4].token_ids


def test_a_model_that_reads_only_text_is_not_given_an_image(renderer: Renderer) -> None:
    tracker = ContextTracker(renderer, 1 << 20)
    with pytest.raises(WorkflowError, match=r"holds an image, but .* reads only text"):
        tracker.prepare([asked("What is it?", openai(CAT))], agent="agent", trainable=True)
    assert tracker.forest.nodes == []
