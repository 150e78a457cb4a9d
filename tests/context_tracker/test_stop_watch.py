"""Where sampling ends for a stop sequence: at one that the agent will read, not at one in a thought or a call."""

from __future__ import annotations

from pathlib import Path

import pytest
from family_templates import family_renderer

from astune.context_tracker import ContextTracker
from astune.renderers import Tool
from astune.renderers.stop_sequences import StopWatch

ASK = [{"role": "user", "content": "How many?"}]
LOOK: list[Tool] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "Observation: 1"}}\n</tool_call>'
THOUGHT = "<think>\nNo Observation: yet.\n</think>\n\n"


@pytest.mark.parametrize(
    ("text", "tools", "sampled"),
    [
        ("I look." + CALL, LOOK, None),
        ("I look.\n" + CALL, LOOK, None),
        (THOUGHT + "Sixty", (), None),
        (THOUGHT + "Sixty\nand more", (), THOUGHT + "Sixty\nand"),
        ('{"n":\n63}', (), '{"n":\n6'),
        ("Sixty Observation: and", (), "Sixty Observation:"),
        ("Sixty Observation: and", LOOK, "Sixty Observation:"),
        ("Sixty\nand more", LOOK, "Sixty\nand"),
    ],
)
def test_only_what_the_agent_reads_ends_an_answer(
    text: str, tools: list[Tool], sampled: str | None, smol_folder: Path
) -> None:
    renderer = family_renderer("qwen3", smol_folder)
    tracker = ContextTracker(renderer, 1 << 20)
    pending = tracker.prepare(ASK, tools, agent="a", trainable=True, stop=["\n", "Observation:"])
    watch = StopWatch(pending.stop, tracker.decode, lambda ids: tracker.shows_stop(pending, ids))
    token_ids = renderer._template.encode(text)
    ends = [n for n, token in enumerate(token_ids, 1) if watch.ends_with(token)]
    assert (tracker.decode(token_ids[: ends[0]]) if ends else None) == sampled


def test_a_long_thought_is_not_read_again_for_each_of_its_lines() -> None:
    looks: list[int] = []
    watch = StopWatch("\n", lambda ids: "".join(map(chr, ids)), lambda ids: bool(looks.append(len(ids))))
    for character in "<think>" + "a\n" * 2000:
        watch.ends_with(ord(character))
    assert 50 < len(looks) < 150
