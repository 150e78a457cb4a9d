"""An episode on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from astune.cli._episode_text import draw_episode
from astune.schema import Episode, Forest, MessageNode, Task


def test_the_tools_that_were_offered_are_named_where_the_prompt_counts_them() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("add", "multiply")]
    forest = Forest([MessageNode(0, None, "system", "Use the tools.", [1, 2], "agent", tools=tools)])
    episode = Episode("e", Task("t", "q"), "train", 0, 0, 0, 0, forest, "error", None)
    printed = io.StringIO()
    Console(file=printed, width=100).print(draw_episode(episode))
    assert "0 system  2 tokens read, with the tools add, multiply" in printed.getvalue()
