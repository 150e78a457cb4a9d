"""A call's JSON while it is written: what is read of a beginning is a beginning of what is read in the end."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astune.renderers import plain_tools
from astune.renderers.call_json import beginning_of_call, is_beyond_json, read_json, repeats_a_key
from astune.renderers.renderer import Reply

TEXTS = st.text(alphabet='ab"\\/{}[],: \n\t\u00e9漢🙂\ud83d\ude42', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def call_of(text: str) -> tuple[str, str] | None:
    """What the reader finds at the end."""
    calls = plain_tools.read(f"<tool_call>{text}</tool_call>").tool_calls
    return calls[0] if calls else None


def is_never_taken_back(text: str) -> list[str]:
    """Checks every beginning; returns the arguments that were settled."""
    whole = call_of(text)
    found = [beginning_of_call(text[:n]) for n in range(len(text) + 1)]
    for call in found:
        if whole is not None and call is not None:
            assert call[0] == whole[0]
            assert whole[1].startswith(call[1])
    return [call[1] for call in found if call is not None]


@example(arguments={"": ["\ud83d\ude42"]}, ascii_only=False, indent=None, name_first=True)
@settings(max_examples=examples(300), deadline=None)
@given(
    arguments=st.dictionaries(TEXTS, VALUES, max_size=4),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
    name_first=st.booleans(),
)
@pytest.mark.slow
def test_arguments_are_settled_as_they_are_written(
    arguments: dict[str, Any], ascii_only: bool, indent: int | None, name_first: bool
) -> None:
    call: dict[str, Any] = {"name": "look", "arguments": arguments}
    if not name_first:
        call = dict(reversed(call.items()))
    text = json.dumps(call, ensure_ascii=ascii_only, indent=indent)
    settled = is_never_taken_back(text)
    assert beginning_of_call(text) == call_of(text) or call_of(text) is None  # half characters may make keys alike
    if name_first and call_of(text) is not None:
        assert settled[0] == ""


def test_a_long_text_is_settled_letter_by_letter() -> None:
    settled = is_never_taken_back(json.dumps({"name": "look", "arguments": {"city": "Rome " * 40}}))
    steps = [len(after) - len(before) for before, after in pairwise(settled)]
    assert sum(steps) == len(settled[-1])
    assert sum(step == 1 for step in steps) >= 195


@settings(max_examples=examples(300), deadline=None)
@given(pieces=st.lists(st.sampled_from([*'{}[]:,"\\ 1e-', '"name"', '"arguments"', '"x"', "{}", "\\u", "d83d"])))
def test_nothing_of_broken_json_is_taken_back(pieces: list[str]) -> None:
    is_never_taken_back('{"name": "look", "arguments": {' + "".join(pieces))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"name": "lo', None),
        ('{"name": "look"', ("look", "")),
        ('{"name": "look", "arguments": ', ("look", "")),
        ('{"name": "look", "arguments": {"ci', ("look", "{")),
        ('{"name": "look", "arguments": {"city": "Ro', ("look", '{"city": "Ro')),
        ('{"name": "look", "arguments": {"city": "Ro\\', ("look", '{"city": "Ro')),
        ('{"name": "look", "arguments": {"city": "\\ud83d', ("look", '{"city": "')),
        ('{"name": "look", "arguments": {"city": "\\ud83d\\ude42', ("look", '{"city": "🙂')),
        ('{"name": "look", "arguments": {"at": 1', ("look", "{")),
        ('{"name": "look", "arguments": {"at":1e2,', ("look", '{"at": 100.0')),
        ('{"name": "look", "arguments": {"at": [1, [2], "a"', ("look", '{"at": [1, [2], "a"')),
        ('{"name": "look", "arguments": {"at": 1}', ("look", '{"at": 1}')),
        ('{"name": "look", "arguments": {"at": 1}, "id": "x', ("look", '{"at": 1}')),
        ('{"name": "look", "arguments": "city', ("look", "")),
        ('{"arguments": {"at": 1}', None),
        ('{"arguments": {"at": 1}, "name": "look"', ("look", '{"at": 1}')),
        ('{"name": " ", "arguments": {"at": 1}', None),
        ('["name", "look"', None),
        ("look", None),
        ("", None),
    ],
)
def test_only_what_is_certain_is_found(text: str, found: tuple[str, str] | None) -> None:
    assert beginning_of_call(text) == found


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_json_has_not_makes_no_call(number: str) -> None:
    text = f'<tool_call>{{"name": "add", "arguments": {{"a": [{number}]}}}}</tool_call>'
    assert plain_tools.read(text) == Reply(text, malformed=[text])
    assert is_beyond_json(f'{{"a": {number}}}')
    assert is_beyond_json(json.loads(f'{{"a": {number}}}'))
    assert not is_beyond_json({"a": "NaN"})


def test_arguments_that_are_nested_too_deep_make_no_call() -> None:
    def called(depth: int) -> Reply:
        call = {"name": "f", "arguments": {"a": json.loads("[" * depth + "]" * depth)}}
        return plain_tools.read(f"<tool_call>{json.dumps(call)}</tool_call>")

    assert called(90).tool_calls
    assert called(200).malformed
    assert is_beyond_json({"a": json.loads("[" * 200 + "]" * 200)})


def test_an_object_that_repeats_a_key_is_no_call() -> None:
    repeated = '{"name": "look", "arguments": {"at": 1, "at": 2}}'
    assert repeats_a_key(repeated)
    assert not repeats_a_key('{"at": 1, "in": {"at": 2}}')
    assert not repeats_a_key("at: 1, at: 2")
    with pytest.raises(ValueError, match="twice"):
        read_json(repeated)
    assert plain_tools.read(f"<tool_call>{repeated}</tool_call>").malformed == [f"<tool_call>{repeated}</tool_call>"]
