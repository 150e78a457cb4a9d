"""A store of conversations as `astune serve` writes it: sessions of two models, rated, corrected and asked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astune.feedback import FeedbackStore, Interaction, Rating

DAY = 86_400.0
BEGAN = 1_790_000_000.0
CALL = {"id": "c1", "type": "function", "function": {"name": "calculate", "arguments": '{"expression": "17 * 4"}'}}
TOOL = {"type": "function", "function": {"name": "calculate", "description": "Calculate."}}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def write_store(path: Path, *, more: int = 0) -> Path:
    """Three sessions, and so many more of one answer each; the newest is first in a list."""
    store = FeedbackStore(path)
    asked = [said("system", "Be short."), said("user", "What is 17 * 4?")]
    worked = [*asked, said("assistant", None, tool_calls=[CALL]), said("tool", "68", tool_call_id="c1")]
    answered = [*worked, said("assistant", "It is 68.")]
    again = [*answered, said("user", "And Straße 5 + 5?"), said("assistant", "<b>ten</b>")]
    reworded = [said("system", "Be short."), said("user", "What is seventeen times four?"), said("assistant", "70")]
    facts = {"session": "sums", "user": "ann", "client": "web", "tools": [TOOL], "source": "served"}
    for at, (name, messages, model) in enumerate(
        [("a1", answered, "1:old"), ("a2", again, "1:old"), ("a3", reworded, "1:old")]
    ):
        tokens = {"prompt_tokens": 40 + at, "completion_tokens": 6}
        store.add(Interaction(name, messages, model=model, created_at=BEGAN + 60 * at, **facts, **tokens))
    store.rate(Rating("a1", 1.0, "Just right", user="ann", created_at=BEGAN + 5))
    store.rate(Rating("a3", -1.0, "", "It is 68.", user="bob", created_at=BEGAN + 130))
    store.rate(Rating("a2", -0.5, kind="implicit:reworded_question", weight=0.3))
    plain = [said("user", "Hello"), said("assistant", "Hi!")]
    store.add(Interaction("b1", plain, session="hello", user="cy", client="app", model="2:new", created_at=BEGAN + DAY))
    store.add(Interaction("alone", [said("user", "Who?"), said("assistant", "Me.")], created_at=BEGAN - DAY))
    for at in range(more):
        messages = [said("user", f"Question {at}?"), said("assistant", f"Answer {at}.")]
        store.add(Interaction(f"m{at}", messages, session=f"more{at}", model="1:old", created_at=BEGAN - 2 * DAY - at))
    store.close()
    return path
