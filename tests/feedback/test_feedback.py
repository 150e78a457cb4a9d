"""Feedback from files that real tools write into a store, and from the store into tasks."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astune.cli.app import run
from astune.config.schema import TaskReaderConfig
from astune.feedback import (
    FeedbackStore,
    Interaction,
    Masker,
    Opinion,
    Rating,
    implicit_ratings,
    read_ratings,
    read_traces,
)
from astune.schema import ConfigError, RunStoreError, TaskReaderError
from astune.task_reader import open_task_reader

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = {"1.0.7": ROOT / ".venv-agentscope-1.0.7/bin/python", "1.0.21": Path(sys.executable)}


@pytest.fixture
def astune(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            run(arguments)
        captured = capsys.readouterr()
        assert int(ended.value.code or 0) == status, captured.out + captured.err
        return re.sub(r"\s+", " ", captured.out + captured.err)

    return call


def recorded(version: str, folder: Path) -> Path:
    python = PYTHONS[version]
    if not python.exists():
        pytest.skip(f"AgentScope {version} is not there: scripts/make_peer_env.sh agentscope-{version} makes it")
    script = Path(__file__).parent / "recorded_spans.py"
    path = folder / f"studio-{version}.db"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    quiet = {"stdout": subprocess.DEVNULL, "timeout": 120}
    subprocess.run([python, script, path], check=True, cwd=folder, env=environment, **quiet)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("version", list(PYTHONS))
def test_studios_database_gives_whole_conversations_with_their_tools(version: str, tmp_path: Path) -> None:
    found = read_traces(recorded(version, tmp_path))
    assert found.broken == []
    assert len(found.interactions) == 2
    by_question = {each.messages[1]["content"]: each for each in found.interactions}
    assert set(by_question) == {"What is 1 + 2? Write to ann@example.com.", 'And what\'s "1" + 2?'}
    for each in found.interactions:
        assert [message["role"] for message in each.messages] == ["system", "user", "assistant", "tool", "assistant"]
        [call] = each.messages[2]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1, "b": 2})
        assert (each.messages[3]["tool_call_id"], each.messages[3]["content"]) == ("c1", "3")
        assert each.messages[4]["content"] == 'It\'s 3, "exactly".'
        assert each.tools[0]["function"]["name"] == "add"
        assert each.model == "toy-model"
        assert each.session
        assert each.created_at > 1.6e9


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    def typed(value: Any) -> dict[str, Any]:
        return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}

    written = [
        {
            "traceId": span["trace"],
            "spanId": f"{number:016x}",
            "name": "chat",
            "startTimeUnixNano": str(1_700_000_000_000_000_000 + number),
            "attributes": [{"key": key, "value": typed(value)} for key, value in span["attributes"].items()],
            "events": [
                {"name": name, "attributes": [{"key": key, "value": typed(value)} for key, value in event.items()]}
                for name, event in span.get("events", [])
            ],
        }
        for number, span in enumerate(spans)
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": written}]}]}


GEN_AI = {
    "trace": "aa" * 16,
    "attributes": {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "qwen",
        "gen_ai.conversation.id": "s1",
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Hello"}]}]),
    },
    "events": [
        ("gen_ai.evaluation.result", {"gen_ai.evaluation.score.value": 1.0, "gen_ai.evaluation.explanation": "kind"})
    ],
}
OPEN_INFERENCE = {
    "trace": "bb" * 16,
    "attributes": {
        "openinference.span.kind": "LLM",
        "llm.model_name": "gpt",
        "session.id": "s2",
        "user.id": "ann",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Add.",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "add",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": "{}",
        "annotation.score": -1.0,
    },
}


def test_otlp_with_two_conventions_and_evaluations_and_a_broken_span(tmp_path: Path) -> None:
    broken = {
        "trace": "cc" * 16,
        "attributes": {"gen_ai.operation.name": "chat", "gen_ai.output.messages": "[nonsense"},
    }
    path = tmp_path / "traces.json"
    path.write_text(json.dumps(otlp(GEN_AI, OPEN_INFERENCE, broken)))
    found = read_traces(path)
    first, second = found.interactions
    assert first.messages == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert (first.session, first.model) == ("s1", "qwen")
    assert second.messages[1]["tool_calls"][0]["function"]["name"] == "add"
    assert (second.session, second.user) == ("s2", "ann")
    assert [(each.interaction_id, each.rating) for each in found.ratings] == [("aa" * 16, 1.0), ("bb" * 16, -1.0)]
    assert len(found.broken) == 1
    assert "cc" * 16 in found.broken[0]


def test_exports_of_langfuse_and_mlflow(tmp_path: Path) -> None:
    generation = {"type": "GENERATION", "traceId": "t1", "sessionId": "s", "userId": "u", "model": "m"}
    langfuse = [
        generation | {"startTime": "2026-01-01T00:00:00Z", "input": [{"role": "user", "content": "a"}], "output": "b"},
        generation
        | {
            "startTime": "2026-01-01T00:00:09Z",
            "input": [{"role": "user", "content": "c"}],
            "output": {"content": "d"},
        },
        generation | {"traceId": "t2", "input": 7, "output": "x"},
    ]
    path = tmp_path / "langfuse.json"
    path.write_text(json.dumps(langfuse))
    found = read_traces(path)
    assert [(each.interaction_id, each.messages[-1]["content"]) for each in found.interactions] == [("t1", "d")]
    assert found.interactions[0].created_at == 1767225609.0
    assert len(found.broken) == 1
    span = {
        "attributes": {
            "mlflow.spanType": '"CHAT_MODEL"',
            "mlflow.spanInputs": json.dumps({"messages": [{"role": "user", "content": "Hi"}], "model": "m"}),
            "mlflow.spanOutputs": json.dumps({"choices": [{"message": {"role": "assistant", "content": "Hey"}}]}),
        }
    }
    assessed = {"trace_id": "tr-1", "assessments": [{"feedback": {"value": False}, "rationale": "curt"}]}
    path = tmp_path / "mlflow.json"
    path.write_text(
        json.dumps(
            [{"info": {"trace_id": "tr-0"}, "data": {"spans": []}}, {"info": assessed, "data": {"spans": [span]}}]
        )
    )
    found = read_traces(path)
    assert [each.messages[-1]["content"] for each in found.interactions] == ["Hey"]
    assert [(each.interaction_id, each.rating, each.comment) for each in found.ratings] == [("tr-1", -1.0, "curt")]
    assert len(found.broken) == 1


def test_numbers_that_are_none_are_named_and_cost_no_conversation(tmp_path: Path) -> None:
    generation = {"type": "GENERATION", "input": [{"role": "user", "content": "a"}]}
    times = {"nan": float("nan"), "large": 10**400, "text": "9" * 400}
    rows = [generation | {"traceId": name, "output": name, "startTime": time} for name, time in times.items()]
    (tmp_path / "langfuse.json").write_text(json.dumps(rows))
    found = read_traces(tmp_path / "langfuse.json")
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    assert [each.created_at for each in found.interactions if store.add(each)] == [0.0] * 3
    store.close()
    scores = [float("nan"), float("inf"), 10**400, 1]
    scored = [OPEN_INFERENCE | {"trace": f"{n:032x}"} for n in range(4)]
    for span, score in zip(scored, scores, strict=True):
        span["attributes"] = OPEN_INFERENCE["attributes"] | {"annotation.score": score}
    (tmp_path / "otlp.json").write_text(json.dumps(otlp(*scored)))
    found = read_traces(tmp_path / "otlp.json")
    assert [each.rating for each in found.ratings] == [1.0]
    assert [each.rpartition(" ")[2] for each in found.broken] == ["nan", "inf", "inf"]
    row = {"trace_id": "a", "rating": 10**400}
    (tmp_path / "ratings.jsonl").write_text(json.dumps(row))
    with pytest.raises(TaskReaderError, match="row 1: the rating is 1000"):
        read_ratings(tmp_path / "ratings.jsonl")
    row = {"trace_id": "a", "corrected_answer": ["Paris"]}
    (tmp_path / "ratings.jsonl").write_text(json.dumps(row))
    with pytest.raises(TaskReaderError, match=r"row 1: a field of corrected_answer is \['Paris'\]"):
        read_ratings(tmp_path / "ratings.jsonl")


def said(
    identity: str, question: str, answer: str, *, session: str = "", user: str = "", at: float = 0.0
) -> Interaction:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Interaction(identity, messages, session=session or identity, user=user, created_at=at)


def test_a_user_who_returns_to_a_first_opinion_has_that_one(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    store.add(said("a", "Where?", "Here."))
    news = [store.rate(Rating("a", value, user="u", created_at=at)) for value, at in ((1.0, 10), (-1.0, 20), (1.0, 30))]
    assert news == [True, True, False]
    assert [(each.rating, each.created_at) for each in store.ratings()] == [(-1.0, 20), (1.0, 30)]
    for value in (1.0, -1.0):
        store.rate(Rating("a", value, user="v"))
    assert [each.rating for each in store.ratings() if not each.created_at] == [1.0, -1.0], (
        "in the order in which they came"
    )
    store.close()


def test_a_user_counts_once_on_an_answer_with_the_last_word(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    store.add(said("a", "Where?", "Here."))
    for at in range(1, 6):
        store.rate(Rating("a", -1.0, f"no, for the {at}th time", user="u", created_at=at))
    for user in ("v", "w"):
        store.rate(Rating("a", -1.0, corrected_answer="There.", user=user, created_at=1))
        store.rate(Rating("a", 1.0, user=user, created_at=2))
    store.rate(Rating("a", corrected_answer="Nowhere.", user="x", created_at=9))
    for score in (0.0, 0.5):
        store.rate(Rating("a", score))  # evaluations of a trace name no user, and are of different things
    assert store.opinions()["a"] == Opinion(1.5 / 5, 6.0, "There.")
    store.close()


def test_personal_data_is_masked_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "feedback.sqlite3"
    store = FeedbackStore(path, Masker({"order": r"#\d{6}"}))
    secrets = ("ann.b@example.co.uk", "+49 170 1234567", "(030) 901820-12", "555-123-4567", "13812345678")
    secrets += ("sk-abcdefghijklmnop1234", "#123456")
    numbers = "3.14159265, 20261124.5, 1000000, 20261124, 2026-11-24, 10 000"
    store.add(said("i", "I am " + ". I am ".join(secrets) + ".", numbers, user="ann"))
    store.rate(Rating("i", 1.0, comment="mail ann.b@example.co.uk", user="ann"))
    [kept] = store.interactions()
    masked = ["[email]", "[phone]", "[phone]", "[phone]", "[phone]", "[key]", "[order]"]
    assert kept.messages[0]["content"] == "".join(f"I am {each}. " for each in masked).rstrip()
    assert kept.messages[1]["content"] == numbers
    store.close()
    held = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for secret in secrets:
        assert secret.encode() not in held
    with pytest.raises(ConfigError, match="the mask order is"):
        Masker({"order": "("})


def test_a_picture_in_base64_is_masked_in_no_time() -> None:
    began = time.process_time()
    for text in ("aB3" * 300_000, "eyJ" + "a-" * 300_000, "-eyJaaaaaaaaaa" * 20_000, "1.2+" * 200_000):
        assert Masker().text(text) == text
    assert time.process_time() - began < 10
    assert Masker().text("to x.y+z@a-b.example.com, eyJhbGciOiJI.eyJzdWIiOiI.c2ln") == "to [email], [key]"


def test_what_belongs_to_a_user_is_gone_when_it_is_asked_for(astune: Callable[..., str], tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    store.add(said("a", "Anns question, word by word", "yes", session="s", user="ann"))
    store.add(said("b", "Bobs question", "no", session="t", user="bob"))
    store.rate(Rating("a", 1.0, user="bob"))
    store.rate(Rating("b", -1.0, comment="Anns opinion", user="ann"))
    store.replace_implicit([Rating("a", -1.0, kind="implicit:repeated_question", user="ann")])
    store.close()
    assert "1 conversations and" in astune("feedback", "forget", "ann")
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    assert [each.interaction_id for each in store.interactions()] == ["b"]
    assert list(store.ratings()) == []
    store.close()
    assert b"Anns" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_importing_twice_changes_nothing_and_unknown_ids_are_named(astune: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "traces.json").write_text(json.dumps(otlp(GEN_AI, OPEN_INFERENCE)))
    (tmp_path / "ratings.csv").write_text(f"trace_id,rating,comment\n{'aa' * 16},1,good\nnobody,1,\n")
    told = astune("feedback", "import", "ratings.csv", "traces.json", "--dry-run")
    assert "2 new conversations" in told
    assert not (tmp_path / "feedback.sqlite3").exists()
    told = astune("feedback", "import", "ratings.csv", "traces.json")
    assert "2 new conversations" in told
    assert "3 new ratings" in told
    assert "1 ratings are of no conversation here: nobody" in told
    told = astune("feedback", "import", "ratings.csv", "traces.json")
    assert "0 new conversations, 2 that were there" in told
    assert "0 new ratings, 3 that were there" in told
    assert "conversations" in astune("feedback", "show")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("rating\n1\n", "no column that names what is rated; its first line is 'rating'; begin it with"),
        ("t1,1,good\n", "no column that names what is rated; its first line is 't1,1,good'"),
        ("trace_id,rating\n,1\n", "row 1: nothing is named that is rated"),
        ("trace_id,comment\na,sch\udcf6n\n", "is not UTF-8"),
        ("trace_id,rating\na,NaN\n", "row 1: the rating is 'NaN'"),
        ("trace_id,label\na,maybe\n", "row 1: the label is 'maybe'"),
        ("trace_id,rating\na,\n", "row 1: neither a rating"),
        ("trace_id,rating,comment\na,1,good, thanks\n", "row 1: it has more values than there are columns"),
        ('trace_id,rating,comment\na,1,\nb,1,"good\nc,1,\n', "row 2: unexpected end of data"),
    ],
)
def test_a_rating_that_says_nothing_is_named_by_its_row(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(TaskReaderError, match=error):
        read_ratings(path)


def test_a_broken_row_costs_no_other(astune: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "traces.json").write_text(json.dumps(otlp(GEN_AI, OPEN_INFERENCE)))
    rows = [{"trace_id": "aa" * 16, "rating": 1, "comment": "one\u2028two"}, {"trace_id": "aa" * 16, "rating": "?"}]
    lines = [json.dumps(each, ensure_ascii=False) for each in rows]
    (tmp_path / "ratings.jsonl").write_text("\n".join([*lines, lines[0][:20]]), encoding="utf-8")
    told = astune("feedback", "import", "traces.json", "ratings.jsonl")
    assert "2 records could not be read: ratings.jsonl, row 2: the rating is '?' ratings.jsonl, row 3: no JSON" in told
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    assert "one\u2028two" in [each.comment for each in store.ratings()]
    store.close()


def test_sessions_say_what_nobody_wrote_down() -> None:
    def turns(*each: tuple[str, str], session: str) -> list[Interaction]:
        made, history = [], []
        for number, (question, answer) in enumerate(each):
            messages = [*history, {"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            made.append(Interaction(f"{session}{number}", messages, session=session, created_at=number))
            history = messages
        return made

    edited = turns(("Write a poem", "Roses are red"), ("Thanks", "Welcome"), session="e")
    edited[1].messages[1] = {"role": "assistant", "content": "Roses are blue"}
    sessions = [
        *turns(("capital of France?", "Lyon"), ("capital of France?", "Paris"), session="a"),
        *turns(("what is the capital of France", "Lyon"), ("what is the capital city of France", "Paris"), session="b"),
        *turns(("what is 12 + 5 in words?", "Five"), ("In words, what is 12+5?", "Seventeen"), session="f"),
        *turns(("What is 12 + 5?", "17"), ("What is 12 - 5?", "7"), ("What is 13 - 5?", "8"), session="g"),
        *turns(("Book a table", "For how many?"), session="c"),
        *turns(("Hello", "Hi"), ("Add 2 and 2", "4"), session="d"),
        *edited,
    ]
    found = {(each.interaction_id, each.kind) for each in implicit_ratings(sessions)}
    assert found == {
        ("a0", "implicit:repeated_question"),
        ("b0", "implicit:reworded_question"),
        ("f0", "implicit:reworded_question"),
        ("c0", "implicit:abandoned_session"),
        ("e0", "implicit:edited_answer"),
    }
    [correction] = [each for each in implicit_ratings(sessions) if each.corrected_answer]
    assert (correction.corrected_answer, correction.weight) == ("Roses are blue", 0.5)


def test_answers_that_nobody_edited_or_asked_for_again_have_no_such_opinion() -> None:
    asked = {"role": "user", "content": "How warm is it?"}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "look"}}]}
    result = {"role": "tool", "tool_call_id": "c", "content": "20"}
    sampled_again = [said("a", "Greet", "Hi", session="s", at=1), said("b", "Greet", "Hello", session="s", at=2)]
    assert [each.kind for each in implicit_ratings(sampled_again)] == ["implicit:repeated_question"]
    steps = [
        Interaction("c", [asked, call], session="t", created_at=1),
        Interaction("d", [asked, call, result, {"role": "assistant", "content": "20 degrees"}], session="t"),
    ]
    assert not list(implicit_ratings(steps))
    of_two = [said(user, "Hello", "Hi", session="same beginning", user=user) for user in ("ann", "bob")]
    assert not list(implicit_ratings(of_two))


def test_accepted_and_corrected_answers_become_tasks_that_no_session_shares(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    for number in range(60):
        store.add(said(f"i{number}", f"question {number}", f"answer {number}", session=f"s{number // 2}"))
        store.rate(Rating(f"i{number}", 1.0 if number % 3 else -1.0, user=f"u{number}"))
    store.rate(Rating("i0", corrected_answer="better 0"))
    store.add(said("again", "question 1", "another answer", session="elsewhere"))
    store.rate(Rating("again", 1.0, weight=0.2))
    store.add(said("bad", "question 1", "a bad answer", session="elsewhere"))
    store.rate(Rating("bad", -1.0))
    store.close()
    config: dict[str, Any] = {
        "type": "feedback_tracing",
        "feedback_tracing": {"path": str(tmp_path / "feedback.sqlite3")},
    }
    splits = open_task_reader(TaskReaderConfig.model_validate(config)).read()
    tasks = {task.main_query: task for task in (*splits.training, *splits.validation)}
    assert len(tasks) == 40 + 1
    assert tasks["question 0"].metadata["answer"] == "better 0"
    assert tasks["question 1"].metadata["answer"] == "answer 1", "the one with more weight"
    assert tasks["question 0"].metadata["rejected"] == "answer 0", "it was corrected"
    assert tasks["question 1"].metadata["rejected"] == "a bad answer", "somebody rated it badly"
    assert "rejected" not in tasks["question 2"].metadata
    assert "question 3" not in tasks
    sessions = [{task.metadata["session"] for task in split} for split in (splits.training, splits.validation)]
    assert sessions[0].isdisjoint(sessions[1])
    assert 2 <= len(splits.validation) <= 18
    assert all(task.init_messages[-1]["role"] == "user" for task in tasks.values())
    config["feedback_tracing"] |= {"only_pairs": True, "held_out": 0}
    pairs = open_task_reader(TaskReaderConfig.model_validate(config)).read().training
    assert {task.main_query for task in pairs} == {"question 0", "question 1"}


def test_a_question_stays_on_its_side_when_better_answers_come(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    settings = {"path": str(tmp_path / "feedback.sqlite3")}
    config = TaskReaderConfig.model_validate({"type": "feedback_tracing", "feedback_tracing": settings})

    def answered(name: str, session: str, at: float, n_ratings: int) -> None:
        store.add(said(name, "question", f"answer {name}", session=session, at=at))
        for user in range(n_ratings):
            store.rate(Rating(name, 1.0, user=f"{name} {user}", created_at=at))

    store.add(said("other", "another question", "yes", session="s0"))
    store.rate(Rating("other", 1.0))
    answered("first", "s0", 1.0, 1)
    assert {task.main_query for task in open_task_reader(config).read().training} == {"another question", "question"}
    answered("better", "s7", 2.0, 5)  # whose own questions are held out
    store.add(said("spelled", " QUESTION", "answer spelled", session="s7", at=3.0))
    store.rate(Rating("spelled", 1.0))
    splits = open_task_reader(config).read()
    store.close()
    assert splits.validation == []
    assert {task.metadata["answer"] for task in splits.training} == {"yes", "answer better", "answer spelled"}


def test_a_store_that_leaves_nothing_to_train_on_says_why(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    settings: dict[str, Any] = {"path": str(tmp_path / "feedback.sqlite3")}

    def why(**more: Any) -> str:
        config = {"type": "feedback_tracing", "feedback_tracing": settings | more}
        with pytest.raises(TaskReaderError) as raised:
            open_task_reader(TaskReaderConfig.model_validate(config)).read()
        return raised.value.message

    assert "holds no answer that is rated 0.5 or better" in why()
    for number in range(3):
        store.add(said(f"i{number}", f"question {number}", "yes", session="s7"))  # which is held out
        store.rate(Rating(f"i{number}", 1.0))
    store.close()
    assert why() == "all 3 questions with an accepted answer are held out"
    assert why(held_out=0, only_pairs=True) == "none of 3 questions with an accepted answer has a rejected one too"


CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "3"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def test_tools_that_were_called_after_the_question_are_learned_or_read_and_never_left_out(
    astune: Callable[..., str], tmp_path: Path
) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    for name, rating in (("good", Rating("good", 1.0)), ("bad", Rating("bad", -1.0, corrected_answer="It is 4."))):
        asked = [{"role": "user", "content": f"Hi {name}"}, {"role": "assistant", "content": "Yes?"}]
        messages = [*asked, {"role": "user", "content": "1 + 2?"}, CALL, RESULT]
        messages.append({"role": "assistant", "content": "It is 3."})
        store.add(Interaction(name, messages, session=name, tools=[ADD]))
        store.rate(rating)
    store.close()
    settings = {"path": str(tmp_path / "feedback.sqlite3"), "held_out": 0}
    config = TaskReaderConfig.model_validate({"type": "feedback_tracing", "feedback_tracing": settings})
    good, bad = sorted(open_task_reader(config).read().training, key=lambda task: task.metadata["corrected"])
    assert [each["role"] for each in good.init_messages] == ["user", "assistant", "user"]
    assert good.metadata["tools"] == bad.metadata["tools"] == [ADD]
    learned = {task.metadata["session"]: learned_of(task.metadata["messages"]) for task in (good, bad)}
    assert learned == {"good": ["", "It is 3."], "bad": ["It is 4."]}, "nobody said that these calls were right"
    assert good.metadata["messages"][3:5] == [CALL, RESULT]
    assert bad.metadata["messages"][4] == RESULT
    assert bad.metadata["chosen"] == [CALL, RESULT, {"role": "assistant", "content": "It is 4."}]
    assert bad.metadata["rejected"] == [CALL, RESULT, {"role": "assistant", "content": "It is 3."}]
    astune("feedback", "export", "--what", "accepted", "--to", "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(learned_of(row["messages"]) for row in rows) == [["", "It is 3."], ["It is 4."]]


def learned_of(messages: list[dict[str, Any]]) -> list[str]:
    return [each["content"] for each in messages if each["role"] == "assistant" and each.get("weight") != 0]


def test_a_store_hands_on_labels_accepted_answers_and_failures(astune: Callable[..., str], tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    for number, rating in enumerate((1.0, -1.0, -1.0)):
        store.add(said(f"i{number}", f"question {number}", f"answer {number}"))
        store.rate(Rating(f"i{number}", rating))
    store.rate(Rating("i2", corrected_answer="better"))
    story = [{"role": "user", "content": "Tell a story."}, {"role": "assistant", "content": "Once"}]
    going_on = [*story, {"role": "user", "content": "Continue"}, {"role": "assistant", "content": "upon"}]
    store.add(Interaction("story", going_on, "story"))
    store.add(Interaction("greeting", [{"role": "assistant", "content": "Hello"}], "greeting"))
    for name in ("story", "greeting"):
        store.rate(Rating(name, -1.0))
    store.close()
    rows: dict[str, list[dict[str, Any]]] = {}
    for what in ("labelled", "accepted", "preferences", "failures"):
        astune("feedback", "export", "--what", what, "--to", "out.jsonl")
        rows[what] = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["metadata"]["score"] for row in rows["labelled"]] == [1.0, -1.0, -1.0, -1.0]
    assert rows["labelled"][-1]["main_query"] == "Tell a story.\nContinue", "and a greeting answers no question"
    assert [row["messages"][-1]["content"] for row in rows["accepted"]] == ["answer 0", "better"]
    assert [(row["chosen"], row["rejected"]) for row in rows["preferences"]] == [("better", "answer 2")]
    assert [row["main_query"] for row in rows["failures"]] == ["question 1", "Tell a story.\nContinue"]


def test_what_no_turn_could_read_or_no_file_hold_is_named_and_the_rest_is_taken(
    astune: Callable[..., str], tmp_path: Path
) -> None:
    def exported(trace: str, question: Any, answer: Any = "Yes.", **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": question, **more}]
        return {"traceId": trace, "type": "GENERATION", "input": messages, "output": answer}

    records = [
        exported("good", "Really?"),
        exported("half", "Half \ud800 a character"),
        exported("object", {"text": "Really?"}),
        exported("number", 7),
        exported("blocks", [{"type": "text", "text": "Really?"}, 7]),
        exported("answer", "Really?", {"role": "assistant", "content": {"text": "Yes."}}),
        exported("calls", "Really?", tool_calls={"name": "add"}),
        exported("\udfff", "Really?"),
    ]
    (tmp_path / "langfuse.json").write_text(json.dumps(records))
    told = astune("feedback", "import", "langfuse.json")
    assert "1 new conversations" in told
    assert "7 records could not be read" in told
    for name in ("half", "object", "number", "blocks", "answer", "calls", "\\udfff"):
        assert f"trace {name}: " in told
    (tmp_path / "ratings.jsonl").write_text('{"trace_id": "good", "rating": 1, "comment": "\\ud800"}\n')
    assert "row 1: a text holds half a surrogate pair" in astune("feedback", "import", "ratings.jsonl", status=1)


@pytest.mark.slow
def test_a_long_conversation_is_kept_once_and_goes_with_its_user(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    messages: list[dict[str, Any]] = []
    for turn in range(80):
        messages.append({"role": "user", "content": f"{turn} " + "x" * 500})
        messages.append({"role": "assistant", "content": f"{turn} " + "y" * 500})
        store.add(Interaction(f"i{turn}", list(messages), "s", user="ann", created_at=turn))
    store.add(Interaction("other", messages[:2], "t", user="bob"))
    assert [len(each.messages) for each in store.interactions()] == [*range(2, 162, 2), 2]
    assert list(store.interactions())[79].messages == messages
    store.forget("ann")
    assert [each.messages for each in store.interactions()] == [messages[:2]]
    store.close()
    assert (tmp_path / "feedback.sqlite3").stat().st_size < 90_000, "what only ann said is gone"
    store = FeedbackStore(tmp_path / "again.sqlite3")
    for turn in range(80):
        store.add(Interaction(f"i{turn}", messages[: 2 * turn + 2], "s"))
    store.close()
    assert (tmp_path / "again.sqlite3").stat().st_size < 400_000, "80,000 characters, and not 3 million"


def test_a_mask_that_was_named_once_holds_for_the_store(astune: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps([GENERATION | {"traceId": "a"}]))
    (tmp_path / "two.json").write_text(json.dumps([GENERATION | {"traceId": "b", "sessionId": "z"}]))
    astune("feedback", "import", "one.json", "--mask", r"order=#\d{6}", "--mask", "phone=")
    astune("feedback", "import", "two.json")
    texts = [each.messages[0]["content"] for each in FeedbackStore(tmp_path / "feedback.sqlite3").interactions()]
    assert texts == ["Order [order], call +49 89 1234567"] * 2


def test_a_mask_that_another_process_names_holds_from_then_on(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    FeedbackStore(tmp_path / "feedback.sqlite3", Masker({"order": r"#\d{6}"})).close()
    store.add(said("a", "Where is #123456?", "Here."))
    FeedbackStore(tmp_path / "feedback.sqlite3", Masker({"seat": r"seat \d+"})).close()
    store.rate(Rating("a", 1.0, comment="#123456 came to seat 7"))
    assert [each.messages[0]["content"] for each in store.interactions()] == ["Where is [order]?"]
    assert [each.comment for each in store.ratings()] == ["[order] came to [seat]"]


def test_conversations_are_read_as_they_were_at_one_moment(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    store.add(said("a", "A question", "yes"))

    def delete(statement: str) -> None:
        if "FROM messages" in statement:
            store._file.set_trace_callback(None)
            with sqlite3.connect(tmp_path / "feedback.sqlite3") as other:
                other.executescript("BEGIN; DELETE FROM interactions; DELETE FROM messages; COMMIT")

    store._file.set_trace_callback(delete)
    assert [each.messages[0]["content"] for each in store.interactions()] == ["A question"]
    assert list(store.interactions()) == []


def test_a_user_is_forgotten_wholly_or_not_at_all(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    store.add(said("a", "Anns question", "yes", user="ann"))
    store.rate(Rating("a", 1.0, user="ann"))
    store._file.execute("CREATE TRIGGER full BEFORE DELETE ON messages BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(RunStoreError, match=r"feedback\.sqlite3: disk full"):
        store.forget("ann")
    assert (len(list(store.interactions())), len(list(store.ratings()))) == (1, 1)
    store._file.execute("DROP TRIGGER full")
    assert store.forget("ann") == (1, 1)


GENERATION = {
    "type": "GENERATION",
    "input": [{"role": "user", "content": "Order #123456, call +49 89 1234567"}],
    "output": "Yes.",
}


@pytest.mark.parametrize("what", ["labelled", "accepted", "preferences"])
def test_what_users_said_alike_is_exported_once_and_read_as_tasks(
    astune: Callable[..., str], tmp_path: Path, what: str
) -> None:
    store = FeedbackStore(tmp_path / "feedback.sqlite3")
    for user in ("ann", "bob"):
        messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "5"}]
        store.add(Interaction(user, messages, session=user, user=user))
        store.rate(Rating(user, -1.0, corrected_answer="4", user=user))
    store.close()
    assert "1 lines" in astune("feedback", "export", "--to", "x.jsonl", "--what", what)
    files = {"type": "jsonl", "jsonl": {"training": {"file_path": str(tmp_path / "x.jsonl")}}}
    assert len(open_task_reader(TaskReaderConfig.model_validate(files)).training_tasks()) == 1


def test_a_plan_of_serving_loads_and_writes_nothing(astune: Callable[..., str], tmp_path: Path) -> None:
    told = astune("serve", "old", "new", "--share", "3", "--share", "1", "--client", "web", "--dry-run")
    assert "75% of the sessions would be answered by old 25% of the sessions would be answered by new" in told
    assert "to web, and kept in feedback.sqlite3" in told
    assert not list(tmp_path.iterdir())
    assert "shares of traffic are above 0" in astune("serve", "old", "--share", "0", "--dry-run", status=2)


def test_a_store_that_cannot_be_written_any_more_is_named(tmp_path: Path) -> None:
    store = FeedbackStore(tmp_path / "own.sqlite3")
    with sqlite3.connect(tmp_path / "own.sqlite3") as damaging:
        damaging.execute("DROP TABLE interactions")
    for use in (lambda: store.add(Interaction("1", [{"role": "assistant", "content": "a"}])), store.digests):
        with pytest.raises(RunStoreError, match=r"feedback in .*own\.sqlite3: no such table"):
            use()
    store.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunStoreError, match=r"feedback .*file/own\.sqlite3 cannot be opened: (File exists|Not a dir)"):
        FeedbackStore(tmp_path / "file" / "own.sqlite3")


def test_a_file_of_another_kind_is_refused_by_name(astune: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text('{"a": 1}')
    assert "odd.json holds no traces in a known format" in astune("feedback", "import", "odd.json", status=1)
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE t (x)")
    assert "has no table span_table" in astune("feedback", "import", "other.db", status=1)
    before = (tmp_path / "other.db").read_bytes()
    assert "other.db is no store of feedback: it holds t" in astune("feedback", "show", "--store", "other.db", status=1)
    assert (tmp_path / "other.db").read_bytes() == before
    FeedbackStore(tmp_path / "own.sqlite3").close()
    for to, error in (("own.sqlite3", "is read, and would be overwritten"), (".", "is a folder")):
        assert error in astune("feedback", "export", "--to", to, "--store", "own.sqlite3", status=2)
    assert "there is no file gone.csv" in astune("feedback", "import", "gone.csv", status=1)
    assert "there is no feedback.sqlite3" in astune("feedback", "show", status=1)
