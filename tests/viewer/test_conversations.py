"""Conversations of a served model over the API: filters, search, one session with its feedback, changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from talk_stage import BEGAN, DAY, write_store
from viewer_stage import get, serving

from astune.feedback import FeedbackStore, Interaction
from astune.feedback.sessions import SessionFilter, SessionReader


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("talk")
    with serving(folder / "record", store=write_store(folder / "feedback.sqlite3")) as client:
        yield client


def keys(client: httpx.Client, /, **asked: object) -> list[str]:
    return [row["key"] for row in get(client, "conversations", **asked)["rows"]]


def test_sessions_are_listed_with_their_question_and_what_was_thought_of_them(client):
    assert get(client, "open")["conversations"].endswith("feedback.sqlite3")
    page = get(client, "conversations")
    assert page["total"] == 3
    assert [row["key"] for row in page["rows"]] == ["hello", "sums", "alone"]
    row = page["rows"][1]
    assert (row["question"], row["answers"], row["models"]) == ("What is 17 * 4?", 3, ["1:old"])
    assert row["opinions"] == {"liked": 1, "disliked": 1, "corrected": 1, "commented": 1, "implicit": 1}
    assert (row["begun"], row["ended"]) == (BEGAN, BEGAN + 120)
    assert row["user"].startswith("u:")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"model": "2:new"}, ["hello"]),
        ({"client": "web"}, ["sums"]),
        ({"user": "ann"}, ["sums"]),
        ({"user": "bob"}, []),
        ({"opinion": "disliked"}, ["sums"]),
        ({"opinion": "none"}, ["hello", "alone"]),
        ({"opinion": "implicit"}, ["sums"]),
        ({"since": BEGAN, "until": BEGAN + DAY}, ["sums"]),
        ({"order": "oldest"}, ["alone", "sums", "hello"]),
        ({"order": "worst"}, ["sums", "hello", "alone"]),
        ({"order": "longest"}, ["sums", "hello", "alone"]),
        ({"offset": 1, "limit": 1}, ["sums"]),
        ({"text": "STRASSE"}, ["sums"]),
        ({"text": "just right"}, ["sums"]),
        ({"text": "calculate"}, ["sums"]),
        ({"text": "assistant"}, []),
        ({"text": '"'}, ["sums"]),
        ({"text": "%"}, []),
    ],
    ids=str,
)
def test_sessions_are_filtered_sorted_and_searched(client, asked, found):
    assert keys(client, **asked) == found


def test_a_match_is_shown_with_what_stands_around_it(client):
    [row] = get(client, "conversations", text="seventeen")["rows"]
    assert row["snippet"] == {"before": "What is ", "match": "seventeen", "after": " times four?"}
    assert get(client, "conversations", text="JUST")["rows"][0]["snippet"]["after"] == " right"


def test_a_session_has_each_message_once_and_the_feedback_on_each_answer(client):
    first, second, third = get(client, "conversation", id="sums")
    assert [message["role"] for message in first["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert [message["content"] for message in second["messages"]] == ["And Straße 5 + 5?", "<b>ten</b>"]
    assert [message["content"] for message in third["messages"]] == ["What is seventeen times four?", "70"]
    assert [answer["left"] for answer in (first, second, third)] == [0, 0, 6]
    assert (first["prompt_tokens"], first["completion_tokens"]) == (40, 6)
    assert first["tools"][0]["function"]["name"] == "calculate"
    assert [(each["rating"], each["comment"]) for each in first["ratings"]] == [(1.0, "Just right")]
    assert third["ratings"][0]["corrected_answer"] == "It is 68."
    assert second["ratings"][0]["kind"] == "implicit:reworded_question"
    [alone] = get(client, "conversation", id="alone")
    assert alone["prompt_tokens"] is None
    get(client, "conversation", 404, id="nobody")


def test_sessions_are_counted_by_model_client_and_opinion(client):
    counts = get(client, "conversation_counts")
    assert dict(counts["model"]) == {"": 1, "1:old": 1, "2:new": 1}
    assert dict(counts["client"]) == {"": 1, "web": 1, "app": 1}
    assert dict(counts["opinion"])["none"] == 2


def test_there_are_none_where_no_store_is_and_a_broken_one_says_so(tmp_path):
    store = tmp_path / "feedback.sqlite3"
    with serving(tmp_path / "record", store=store) as client:
        assert get(client, "open")["conversations"] is None
        assert "astune serve" in get(client, "conversations", 404)["hint"]
        store.write_bytes(b"no database")
        assert "cannot be read" in get(client, "conversations", 500)["error"]
        store.unlink()
        write_store(store)
        assert get(client, "conversations")["total"] == 3


def test_a_store_of_before_tokens_were_counted_is_read_and_written(tmp_path):
    path = write_store(tmp_path / "feedback.sqlite3")
    with sqlite3.connect(path) as file:
        for column in ("prompt_tokens", "completion_tokens"):
            file.execute(f"ALTER TABLE interactions DROP COLUMN {column}")
    with serving(tmp_path / "record", store=path) as client:
        assert get(client, "conversation", id="hello")[0]["completion_tokens"] is None
        store = FeedbackStore(path)
        store.add(Interaction("c1", [{"role": "assistant", "content": "x"}], session="new", completion_tokens=7))
        assert [each.completion_tokens for each in store.interactions() if each.session == "new"] == [7]
        store.close()
        assert get(client, "conversation", id="new")[0]["completion_tokens"] == 7


def test_a_page_asks_once_which_columns_the_store_has(tmp_path, monkeypatch):
    asked: list[str] = []
    connect = sqlite3.connect

    def traced(*args: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*args, **named)
        connection.set_trace_callback(asked.append)
        return connection

    store = write_store(tmp_path / "feedback.sqlite3")
    monkeypatch.setattr(sqlite3, "connect", traced)
    _, rows = SessionReader(store).page(SessionFilter(), "newest", offset=0, limit=10)
    assert len(rows) == 3
    assert sum("table_info" in sql for sql in asked) == 1
