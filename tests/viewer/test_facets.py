"""Episodes counted: facets under the other filters, tasks from step to step, and what each row was asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from viewer_stage import branching_episode, get, make_episode, read_node, said_node, serving, write_run

from astune.schema import Episode, Task

HELD_OUT = {"even": [0, 0, 1], "odd": [1, 1, 0], "hard": [0, 0, 0]}
"""Successes of three held-out tasks at the steps 0, 2 and 4."""


def play(task: str, step: int, success: int, repeat: int) -> Episode:
    question = f"Is it {task}?"
    return make_episode(repeat, question=question, reward=float(success), step=step, split="validation", task=task)


def branching(task: str) -> Episode:
    episode = branching_episode()
    episode.episode_id, episode.task = f"train-{task}", Task(task, "Who is it?")
    return episode


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    measured = [
        play(task, 2 * at, success, repeat)
        for task, successes in HELD_OUT.items()
        for at, success in enumerate(successes)
        for repeat in range(2)
    ]
    trained = [make_episode(number, reward=number / 20, answer="x" * number, step=1) for number in range(20)]
    failed = [make_episode(number, error="EnvError: away", step=3, task="t") for number in range(3)]
    return write_run(tmp_path_factory.mktemp("facets"), [*measured, *trained, *failed, branching("forked")])


@pytest.fixture(scope="module")
def client(run: Path) -> Iterator[httpx.Client]:
    with serving(run) as client:
        yield client


def test_lengths_are_in_bins_of_whole_numbers_that_the_filter_takes(client):
    bins = get(client, "facets", run="", split="train")["n_tokens"]
    assert len(bins) > 1
    assert sum(count for *_, count in bins) == get(client, "episodes", run="", split="train")["total"]
    for low, high, count in bins:
        asked = {"min_tokens": low, "max_tokens": high}
        assert get(client, "episodes", run="", split="train", **asked)["total"] == count


def test_values_are_counted_under_all_filters_but_their_own(client):
    found = get(client, "facets", run="", split="validation", status="success")
    assert dict(found["split"]) == {"validation": 6, "train": 20}
    assert dict(found["status"]) == {"success": 6, "failed": 12}
    assert found["error_type"] == []
    assert dict(get(client, "facets", run="")["error_type"]) == {"EnvError": 3}
    assert dict(get(client, "facets", run="")["agent"]) == {"solver": 42, "helper": 1}


def test_few_values_stand_by_themselves_and_many_in_bins_of_equal_width(client):
    held_out = get(client, "facets", run="", split="validation")
    assert held_out["reward"] == [[0, 0, 12], [1, 1, 6]]
    bins = get(client, "facets", run="", split="train")["reward"]
    assert len(bins) == 12
    assert sum(count for *_, count in bins) == 21
    assert (bins[0][0], bins[-1][1]) == (0, 1)
    for low, high, count in bins:
        asked = {"min_reward": low, "max_reward": high}
        assert get(client, "episodes", run="", split="train", **asked)["total"] == count


def test_a_value_on_the_edge_of_two_bins_is_found_in_the_one_that_counts_it(tmp_path):
    """Of 24 tests some are passed: each second reward is where a bin ends and the next one begins."""
    run = write_run(tmp_path, [make_episode(number, reward=number / 24, step=1) for number in range(25)])
    with serving(run) as client:
        bins = get(client, "facets", run="", split="train")["reward"]
        for low, high, count in bins:
            assert get(client, "episodes", run="", min_reward=low, max_reward=high)["total"] == count


def test_a_search_is_counted_too(client):
    found = get(client, "facets", run="", text="is it odd")
    assert dict(found["status"]) == {"success": 4, "failed": 2}


def test_each_task_has_its_success_from_step_to_step(client):
    found = get(client, "tasks", run="", split="validation", by="change", order="desc")
    assert [row["task_id"] for row in found["rows"]] == ["even", "hard", "odd"]
    even = found["rows"][0]
    assert even["steps"] == [[0, 2, 0], [2, 2, 0], [4, 2, 2]]
    assert (even["turned"], even["question"]) == ("solved", "Is it even?")
    assert get(client, "episode", run="", id=even["newest"])["row"]["step"] == 4


@pytest.mark.parametrize(("turned", "task"), [("solved", "even"), ("broken", "odd")])
def test_tasks_that_turned_are_found(client, turned, task):
    found = get(client, "tasks", run="", split="validation", turned=turned)
    assert (found["total"], found["rows"][0]["task_id"]) == (1, task)


def test_tasks_come_in_pages_and_episodes_of_one_task_are_exactly_its_own(client):
    page = get(client, "tasks", run="", split="validation", offset=1, limit=1)
    assert (page["total"], len(page["rows"])) == (3, 1)
    assert get(client, "episodes", run="", task="t")["total"] == 23  # a part of the id
    assert get(client, "episodes", run="", task_id="t")["total"] == 3


def test_episodes_are_filtered_by_the_policy_that_answered(tmp_path):
    """Who has which target changes from episode to episode."""
    games = [make_episode(0, targets={"solver": "werewolf"}), make_episode(1, targets={"solver": "villager"})]
    games.append(make_episode(2, reward=0.0, targets={"solver": "judge"}))
    run = write_run(tmp_path, games)
    with open(run / "config.yaml", "a") as file:
        file.write("  models:\n    wolf: {targets: [werewolf]}\n    village: {targets: [villager, seer]}\n")
    with serving(run) as client:
        assert get(client, "run", run="")["policies"] == ["village", "wolf"]
        counted = {"wolf": 1, "village": 1, "default": 1}
        assert dict(get(client, "facets", run="", policy="wolf")["policy"]) == counted
        assert get(client, "facets", run="", policy="wolf")["status"] == [["success", 1]]
        assert get(client, "facets", run="", success="false")["policy"] == [["default", 1]]
        [row] = get(client, "episodes", run="", policy="wolf")["rows"]
        assert row["episode_id"] == games[0].episode_id
        assert get(client, "episodes", run="", policy="wolf", text="nothing like it")["total"] == 0
        assert get(client, "tasks", run="", policy="village")["total"] == 1
        assert get(client, "episodes", run="", policy="nobody")["total"] == 0


def test_a_row_has_its_question_also_where_the_task_has_messages_alone(client, tmp_path):
    rows = get(client, "episodes", run="", split="validation", limit=1)["rows"]
    assert rows[0]["question"] == "Is it even?"
    nodes = [
        read_node(0, None, "An example?"),
        read_node(1, 0, "Its answer.", role="assistant"),
        read_node(2, 1, "The\nquestion?"),
        said_node(3, 2, "yes"),
    ]
    episode = make_episode(nodes=nodes)
    episode.task = Task("shown", init_messages=[{"role": "user", "content": "An example?"}])
    with serving(write_run(tmp_path, [episode])) as other:
        assert get(other, "episodes", run="")["rows"][0]["question"] == "The question?"


@pytest.mark.parametrize(
    ("name", "given"), [("tasks", {"by": "seq"}), ("tasks", {"turned": "x"}), ("facets", {"step": "x"})]
)
def test_a_question_that_has_no_answer_is_refused(client, name, given):
    get(client, name, 400, run="", **given)
