"""What failed is placed in the user's own file, whatever it called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astune.app.debugging import users_traceback
from astune.schema import EngineError, WorkflowError, boundary, described, is_users, place_of


def failure_of(text: str) -> Exception:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    return caught.value


def test_the_standard_library_is_not_the_users():
    assert not is_users(json.__file__)
    assert not is_users(pytest.__file__)
    assert is_users(__file__)
    assert place_of(failure_of("{")).startswith(f" ({__file__}:")


def test_one_without_text_is_its_kind_alone():
    assert described(ValueError()) == "ValueError"
    assert described(ValueError("no")) == "ValueError: no"


def test_the_traceback_begins_in_the_users_code_and_names_no_wrapper():
    wrapped = WorkflowError("it failed")
    wrapped.__cause__ = failure_of("{")
    told = users_traceback(wrapped).splitlines()
    assert Path(__file__).name in told[1]
    assert "WorkflowError" not in "\n".join(told)
    assert told[-1].startswith("json.decoder.JSONDecodeError")
    assert users_traceback(EngineError("nothing raised it")) == ""


async def test_what_an_environment_raises_is_placed():
    with pytest.raises(EngineError, match=r"asking \(.*test_user_place.py:\d+\): ValueError$"):
        async with boundary(EngineError, "asking"):
            raise ValueError
