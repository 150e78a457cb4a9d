"""Messages as text, and where a text stands in them."""

from __future__ import annotations

import pytest

from astune.runs import Snippet, find_text
from astune.runs.texts import SNIPPET_CHARACTERS, folded, forest_text
from astune.schema import Forest, MessageNode


@pytest.mark.parametrize(
    ("text", "sought", "match"),
    [
        ("What is it?", "IS", "is"),
        ("Straße nach Köln", "STRASSE", "Straße"),
        ("Straße nach Köln", "köln", "Köln"),
        ("ΟΔΥΣΣΕΥΣ", "οδυσσευς", "ΟΔΥΣΣΕΥΣ"),
        ("для Всех", "ВСЕХ", "Всех"),
        ("这个函数返回", "函数", "函数"),
        ("ﬃx it", "X", "x"),
        ("nothing", "here", None),
        ("", "a", None),
    ],
)
def test_a_text_is_found_in_any_case_and_shown_as_written(text: str, sought: str, match: str | None) -> None:
    found = find_text(text, sought)
    assert (found.match if found else None) == match
    assert (folded(sought) in folded(text)) == (match is not None)


def test_a_snippet_is_cut_on_both_sides() -> None:
    text = "a" * 200 + "NEEDLE" + "b" * 200
    side = SNIPPET_CHARACTERS
    assert find_text(text, "needle") == Snippet("a" * side, "NEEDLE", "b" * side)


def test_all_that_was_said_is_text() -> None:
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    nodes = [
        MessageNode(0, None, "user", [{"type": "text", "text": "one"}, "two"], [1], "a"),
        MessageNode(1, 0, "assistant", "", [1], "a", reasoning="hm", tool_calls=[call]),
        MessageNode(2, 1, "tool", {"sum": "ü"}, [1], "a"),
        MessageNode(3, 2, "assistant", None, [1], "a"),
    ]
    assert forest_text(Forest(nodes)) == 'one\ntwo\nhm\nadd({"a": 1})\n{"sum": "ü"}'
    assert folded("half a \ud83d character") == b"half a ? character"
