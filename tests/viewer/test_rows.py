"""Lists of episodes: what is asked for comes, in the order that is wanted, and a text is found wherever it stands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from viewer_stage import branching_episode, get, make_episode, read_node, said_node, serving, write_run

from astune.runs.texts import forest_text
from astune.schema import MessageNode

EPISODES = [
    *(make_episode(number, step=1, reward=number / 4, task="apples") for number in range(4)),
    make_episode(0, step=2, task="Pears", question="那么,这个函数返回什么?", answer="答案是 Ünïcode 🙂"),
    make_episode(1, step=2, task="Pears", question="100% of_it", answer='say "it\'s" \\ fine; DROP TABLE episodes'),
    make_episode(2, step=2, task="Pears", error="JudgeError: no 'answer' in it"),
    make_episode(0, step=2, split="validation", task="held", reward=0.0, answer="<script>alert(1)</script>"),
    make_episode(1, step=2, split="validation", task="held", reward=0.0, status="truncated", answer="long " * 99),
    branching_episode(),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    run = write_run(tmp_path_factory.mktemp("record"), EPISODES)
    with serving(run) as client:
        yield client


def seqs(client: httpx.Client, **asked: Any) -> list[int]:
    answer = get(client, "episodes", run="", **asked)
    assert answer["total"] == len(answer["rows"])
    return [row["seq"] for row in answer["rows"]]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"split": "train", "step": 2}, [5, 6, 7]),
        ({"task": "PEAR"}, [5, 6, 7]),
        ({"task": "e"}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"task": "100%"}, []),
        ({"status": "error"}, [7]),
        ({"status": "truncated"}, [9]),
        ({"error_type": "JudgeError"}, [7]),
        ({"agent": "helper"}, [10]),
        ({"agent": 'help"er'}, []),
        ({"min_reward": 0.25, "max_reward": 0.5}, [2, 3]),
        ({"success": "true"}, [4, 5, 6, 10]),
        ({"success": "false", "split": "validation"}, [8, 9]),
        ({"min_branches": 2}, [10]),
        ({"min_tokens": 400}, [9]),
        ({"max_tokens": 24, "step": 1}, [1, 2, 3, 4]),
        ({"task": "", "status": ""}, list(range(1, 11))),
    ],
)
def test_filters_let_pass_what_they_name(client, asked, expected):
    assert seqs(client, **asked) == expected


@pytest.mark.parametrize(
    ("sought", "expected"),
    [
        ("这个函数", [5]),
        ("ÜNÏCODE 🙂", [5]),
        ("100% OF_IT", [6]),
        ('say "it\'s" \\ fine', [6]),
        ("%", [6]),
        ("_", [6]),
        ("'; DROP", []),
        ("; drop table episodes", [6]),
        ("<script>alert(1)</script>", [8]),
        ("and then?", [10]),
        ("let me think", [10]),
        ("nowhere", []),
    ],
)
def test_a_text_is_found_as_it_is_written_in_any_case(client, sought, expected):
    assert seqs(client, text=sought) == expected


def test_a_text_and_other_filters_hold_together(client):
    assert seqs(client, text="what is", success="true") == [4]
    assert seqs(client, text="what is", success="true", sort="reward", order="desc") == [4]


def test_a_snippet_is_as_it_was_written(client):
    (row,) = get(client, "episodes", run="", text="ünïcode")["rows"]
    assert row["snippet"] == {"before": "那么,这个函数返回什么?\n答案是 ", "match": "Ünïcode", "after": " 🙂"}
    assert get(client, "episodes", run="", limit=1)["rows"][0]["snippet"] is None


@pytest.mark.parametrize(
    ("sort", "order", "expected"),
    [
        ("reward", "asc", [1, 8, 9, 2, 3, 4, 5, 6, 10, 7]),
        ("reward", "desc", [5, 6, 10, 4, 3, 2, 1, 8, 9, 7]),
        ("task", "asc", [5, 6, 7, 1, 2, 3, 4, 8, 9, 10]),
        ("branches", "desc", [10, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("success", "desc", [4, 5, 6, 10, 1, 2, 3, 8, 9, 7]),
        ("status", "asc", [7, 1, 8, 2, 3, 4, 5, 6, 10, 9]),
        ("error_type", "asc", [7, 1, 2, 3, 4, 5, 6, 8, 9, 10]),
        ("agent", "desc", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("seq", "desc", list(range(10, 0, -1))),
    ],
)
def test_rows_come_sorted_and_what_has_no_value_last(client, sort, order, expected):
    assert seqs(client, sort=sort, order=order) == expected


@pytest.mark.parametrize("sort", ["step", "seconds", "n_tokens", "n_sampled", "n_trained", "n_turns"])
def test_every_column_sorts(client, sort):
    rows = get(client, "episodes", run="", sort=sort)["rows"]
    values = [row[sort] for row in rows]
    assert values == sorted(values)


def test_pages_follow_each_other(client):
    pages = [get(client, "episodes", run="", offset=start, limit=4) for start in (0, 4, 8, 12)]
    assert [page["total"] for page in pages] == [10] * 4
    assert [row["seq"] for page in pages for row in page["rows"]] == list(range(1, 11))


@pytest.mark.parametrize(
    "asked",
    [
        {"sort": "blob"},
        {"sort": "seq; DROP TABLE episodes"},
        {"order": "up"},
        {"status": "great"},
        {"step": "first"},
        {"step": "9" * 30},
        {"min_reward": "nan"},
        {"limit": 1001},
        {"offset": -1},
        {"success": "1"},
    ],
)
def test_a_malformed_question_is_refused_by_name(client, asked):
    (name,) = asked
    assert name in get(client, "episodes", 400, run="", **asked)["error"]


def test_an_unknown_run_or_episode_is_not_found(client):
    assert "no run" in get(client, "run", 404, run="demo")["error"]
    assert "no such episode" in get(client, "episode", 404, run="", id="nobody")["error"]
    found = get(client, "episodes", run="")["rows"][0]["episode_id"]
    assert "1 timelines" in get(client, "tokens", 404, run="", id=found, timeline=1)["error"]
    assert "missing" in get(client, "episode", 400, run="")["error"]


def test_a_long_episode_and_many_branches_are_no_matter(tmp_path: Path):
    nodes = [read_node(0, None, "start")]
    for number in range(50):
        parent = 0 if number % 2 else len(nodes) - 1
        nodes.append(said_node(len(nodes), parent, "x" * 2000, fork_cause="sampled again"))
    with serving(write_run(tmp_path, [make_episode(nodes=nodes)])) as client:
        episode = get(client, "episode", run="", id=EPISODES[0].episode_id.replace("apples-000", "task-1-000"))
        assert len(episode["timelines"]) == episode["row"]["n_branches"] >= 25
        tokens = get(client, "tokens", run="", id=episode["row"]["episode_id"], timeline=0)
        assert tokens["length"] == episode["timelines"][0]["n_tokens"]


def test_what_json_cannot_hold_reaches_the_page_as_null_and_lists(tmp_path: Path):
    episode = make_episode()
    episode.metrics = {"odd": float("nan")}
    episode.judge_inputs = {"pairs": [(1, float("inf")), ("a", {"b": (2,)})]}
    with serving(write_run(tmp_path, [episode])) as client:
        shown = get(client, "episode", run="", id=episode.episode_id)
    assert shown["metrics"] == {"odd": None}
    assert shown["judge_inputs"] == {"pairs": [[1, None], ["a", {"b": [2]}]]}


def test_a_part_of_a_tasks_id_is_found_in_any_case_and_script(tmp_path: Path):
    with serving(write_run(tmp_path, [make_episode(task="Täsk-Ü/0"), make_episode(task="other")])) as client:
        assert [get(client, "episodes", run="", task=text)["total"] for text in ("TÄSK", "ü/0", "tÄ", "x")] == [
            1,
            1,
            1,
            0,
        ]


def test_an_episode_with_half_characters_in_its_names_is_shown(tmp_path: Path):
    nodes = [
        read_node(0, None, "q", agent="a\ud83d", name="n\ud83d"),
        said_node(1, 0, "a", agent="a\ud83d", reasoning="r\ud83d", fork_cause="f\ud83d"),
    ]
    episode = make_episode(nodes=nodes, targets={"a\ud83d": "t\ud83d"})
    episode.timings = {"s\ud83d": 1.0}
    with serving(write_run(tmp_path, [episode])) as client:
        [row] = get(client, "episodes", run="")["rows"]
        shown = get(client, "episode", run="", id=row["episode_id"])
        get(client, "tokens", run="", id=row["episode_id"], timeline=0)
    asked, answer = shown["messages"]
    assert (asked["agent"], asked["name"], answer["reasoning"]) == ("a�", "n�", "r�")
    assert (shown["timelines"][0]["target"], shown["timings"]) == ("t�", {"s�": 1.0})


def test_the_page_searches_in_what_the_server_searches_in(tmp_path: Path):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": "x"}'}}
    blocks = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": "half \ud83d"}, "this"]
    nodes = [
        read_node(0, None, "What?"),
        said_node(1, 0, "", reasoning="Hm.", tool_calls=[call]),
        MessageNode(2, 1, "tool", blocks, [1], "solver"),
        said_node(3, 2, "Done."),
    ]
    episode = make_episode(nodes=nodes)
    with serving(write_run(tmp_path, [episode])) as client:
        messages = get(client, "episode", run="", id=episode.episode_id)["messages"]
        found = {
            text: get(client, "episodes", run="", text=text)["total"] for text in ('add({"a"', '"function"', "see")
        }
    assert [one["searched"] is None for one in messages] == [True, False, False, True]
    in_page = [part for one in messages for part in (one["reasoning"], one["searched"] or one["content"]) if part]
    assert "\n".join(in_page) == forest_text(episode.forest).replace("\ud83d", "?")
    assert found == {'add({"a"': 1, '"function"': 0, "see": 1}
