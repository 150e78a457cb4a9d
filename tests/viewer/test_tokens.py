"""The columns of a timeline: parts of characters, masks with their reasons, and advantages of single messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from viewer_stage import BYTES, CONFIG, branching_episode, get, make_episode, read_node, said_node, serving, writing

from astune.schema import Episode, Forest, Timeline, Vocabulary


def test_tokens_that_are_parts_of_characters_are_joined(tmp_path: Path):
    joined = {
        b"abc": [],
        "漢".encode(): [[0, 3, "漢"]],
        "a🙂b漢字".encode(): [[1, 5, "🙂"], [6, 9, "漢"], [9, 12, "字"]],
        b"\xf0\x9fso": [[0, 2, "\ufffd"]],
        b"\x99\x82": [[0, 1, "\ufffd"], [1, 2, "\ufffd"]],
        b"ok\xe6\xbc": [[2, 4, "\ufffd"]],
    }
    assert characters(tmp_path, [[*data] for data in joined], BYTES) == [*joined.values()]


def test_a_token_that_ends_one_character_and_begins_another_belongs_to_one_run(tmp_path: Path):
    pieces = [" 漢".encode()[:3], "漢字".encode()[2:4], "字".encode()[1:], b"."]
    assert characters(tmp_path, [[0, 1, 2, 3]], Vocabulary(pieces)) == [[[0, 3, " 漢字"]]]


def characters(folder: Path, answers: list[list[int]], vocabulary: Vocabulary) -> list[list[list[object]]]:
    """What the viewer tells of answers of these tokens: runs of parts of characters, and what they read as together."""
    episodes = [make_episode(number) for number, _ in enumerate(answers)]
    for episode, ids in zip(episodes, answers, strict=True):
        question, answer = episode.forest.nodes
        question.token_ids, answer.token_ids, answer.logprobs = [], ids, [0.0] * len(ids)
    with writing(folder, vocabulary=vocabulary) as run, run.open_episodes() as store:
        for episode in episodes:
            store.append(episode)
    with serving(run.path) as client:
        return [get(client, "tokens", run="", id=episode.episode_id)["characters"] for episode in episodes]


def test_a_message_that_several_timelines_read_is_trained_in_the_first(tmp_path: Path):
    episode = branching_episode()
    with writing(tmp_path) as run, run.open_episodes() as store:
        store.append(episode, [0.5, -0.5, 1.5])  # as where the judge rewards turns
    with serving(run.path) as client:
        asked = {"run": "", "id": episode.episode_id}
        shown = get(client, "episode", **asked)
        first, second, third = (get(client, "tokens", timeline=number, **asked) for number in range(3))
    assert [timeline["target"] for timeline in shown["timelines"]] == ["solver", "solver", "assistant"]
    reasons = [
        [span["mask_reason"] for span in tokens["spans"] if span["sampled"]] for tokens in (first, second, third)
    ]
    assert reasons == [[None, None], ["trained in another timeline", None], ["not a training target"]]
    assert [tokens["advantages"] for tokens in (first, second, third)] == [[0.5, -0.5], [0.5, 1.5], [None]]
    assert [message["advantage"] for message in shown["messages"]] == [None, 0.5, None, -0.5, None, 1.5, None, None]
    assert shown["row"]["advantage"] == pytest.approx(0.5)
    assert [any(tokens["grammar"]) for tokens in (first, second, third)] == [False, True, False]
    assert first["trainer_logprobs"] is None
    assert shown["messages"][5]["constraint"] == "regex: (yes|no)"
    assert shown["messages"][0]["tools"][0]["function"]["name"] == "add"
    assert first["characters"][0][2] == "漢"
    assert first["texts"]["256"] == "<|end|>"


def test_a_message_that_a_rule_left_out_carries_no_loss(tmp_path: Path):
    episode = branching_episode()
    with writing(tmp_path) as run, run.open_episodes() as store:
        store.append(episode, [0.5, float("nan"), 1.5])
    with serving(run.path) as client:
        asked = {"run": "", "id": episode.episode_id}
        shown = get(client, "episode", **asked)
        first = get(client, "tokens", timeline=0, **asked)
    sampled = [span for span in first["spans"] if span["sampled"]]
    assert [span["mask_reason"] for span in sampled] == [None, "left out of the update"]
    assert first["loss"] == [[sampled[0]["start"], sampled[0]["end"]]]
    assert [message["advantage"] for message in shown["messages"]][:4] == [None, 0.5, None, None]
    assert shown["timelines"][0]["n_trained"] == sampled[0]["end"] - sampled[0]["start"]


def test_given_answers_have_no_log_probabilities_of_an_engine(tmp_path: Path):
    sampled, given = make_episode(0), make_episode(1)
    given.metrics["demonstrated_tokens"] = 2.0
    with writing(tmp_path) as run, run.open_episodes() as store:
        for each in (sampled, given):
            store.append(each)
    with serving(run.path) as client:
        found = [get(client, "tokens", run="", id=each.episode_id)["logprobs"] for each in (sampled, given)]
        cards = [get(client, "episode", run="", id=each.episode_id)["messages"][-1] for each in (sampled, given)]
    assert found[0]
    assert all(isinstance(value, float) for value in found[0])
    assert found[1] == [None] * len(found[0])
    assert [card["logprob_sum"] is None for card in cards] == [False, True]


def test_neighbouring_sampled_messages_are_one_run_of_loss(tmp_path: Path):
    nodes = [read_node(0, None, "q"), said_node(1, 0, "ab"), said_node(2, 1, "cd")]
    nodes[2].token_ids = nodes[2].token_ids[1:]
    episode = make_episode(nodes=nodes)
    with writing(tmp_path) as run, run.open_episodes() as store:
        store.append(episode, [0.5])
    with serving(run.path) as client:
        tokens = get(client, "tokens", run="", id=episode.episode_id)
    assert tokens["loss"] == [[2, 8]]
    assert tokens["advantages"] == [0.5, 0.5]
    assert tokens["logprobs"] == pytest.approx([0.0, -0.1, -0.2] * 2)


def test_characters_of_a_run_that_asked_an_endpoint_of_text_read_as_themselves(tmp_path: Path):
    nodes = [read_node(0, None, ""), said_node(1, 0, "")]
    nodes[0].token_ids = [ord(character) for character in "漢字?"]
    nodes[1].token_ids, nodes[1].logprobs = [ord("🙂"), 0xD800], [float("nan"), float("nan")]
    episode = make_episode(nodes=nodes)
    with writing(tmp_path, vocabulary=Vocabulary(None)) as run, run.open_episodes() as store:
        store.append(episode)
    with serving(run.path) as client:
        tokens = get(client, "tokens", run="", id=episode.episode_id)
        raw = [message["raw"] for message in get(client, "episode", run="", id=episode.episode_id)["messages"]]
    assert "".join(tokens["texts"][str(token)] for token in tokens["ids"][:4]) == "漢字?🙂"
    assert tokens["logprobs"] == [None, None]
    assert raw[0] == "漢字?"


@pytest.mark.parametrize(
    ("more", "not_trained", "reason"),
    [
        ({"split": "validation"}, None, "held out"),
        ({"error": "ModelError: gone"}, None, "the attempt failed"),
        ({}, "the group is too old", "the group is too old"),
        ({}, None, "step not finished"),
    ],
)
def test_of_an_episode_that_was_not_trained_no_token_takes_part_in_the_loss(tmp_path: Path, more, not_trained, reason):
    trained = make_episode(1, answer="so")
    episode = make_episode(nodes=branching_episode().forest.nodes, **more)
    with writing(tmp_path) as run, run.open_episodes() as store:
        store.append(trained, [0.5])
        store.append(episode, not_trained=not_trained)
    with serving(run.path) as client:
        asked = {"run": "", "id": episode.episode_id}
        shown = get(client, "episode", **asked)
        tokens = [get(client, "tokens", timeline=number, **asked) for number in range(3)]
        rows = get(client, "episodes", run="", sort="n_trained")["rows"]
    assert [one["loss"] for one in tokens] == [[], [], []]
    spans = [span for one in tokens for span in one["spans"]]
    assert {span["mask_reason"] for span in spans if span["sampled"]} == {reason}
    assert {span["mask_reason"] for span in spans if not span["sampled"]} == {None}
    assert [timeline["n_trained"] for timeline in shown["timelines"]] == [0, 0, 0]
    assert shown["row"]["n_trained"] == 0
    assert tokens[0]["advantages"] is None
    assert [(row["repeat"], row["n_trained"]) for row in rows] == [(0, 0), (1, 3)]


def test_rows_and_timelines_agree_on_what_is_trained_where_grammars_are_masked(tmp_path: Path):
    episode = replace(branching_episode(), constrained_tokens="mask")
    with writing(tmp_path) as run, run.open_episodes() as store:
        store.append(episode, [0.5])
    with serving(run.path) as client:
        shown = get(client, "episode", run="", id=episode.episode_id)
    trained = [timeline["n_trained"] for timeline in shown["timelines"]]
    assert trained == [timeline.n_trained for timeline in episode.timelines] == [len("first") + len("second") + 2, 0, 0]
    assert shown["row"]["n_trained"] == sum(trained)


def test_a_group_is_what_was_compared_without_its_failed_attempts(tmp_path: Path):
    failed = replace(make_episode(error="ModelError: gone"), episode_id="failed")
    with writing(tmp_path) as run, run.open_episodes() as store:
        for episode in (failed, make_episode(), make_episode(1)):
            store.append(episode)
    with serving(run.path) as client:
        for asked in (failed, make_episode()):
            group = get(client, "episode", run="", id=asked.episode_id)["group"]
            assert [(one["repeat"], one["status"]) for one in group] == [(0, "success"), (1, "success")]


@pytest.mark.parametrize(
    ("settings", "reference"),
    [("", "4"), ("  task_judge: {reference_field: key}\n", ["5"]), ("  task_judge: {reference_field: x}\n", None)],
)
def test_an_episode_has_the_answer_that_its_judge_compares_with(tmp_path: Path, settings, reference):
    episode = branching_episode()
    episode.task = replace(episode.task, metadata={"answer": "4", "key": ["5"]})
    with writing(tmp_path) as run, run.open_episodes() as store:
        store.append(episode, [0.5])
        run.save_config(CONFIG + settings)
    with serving(run.path) as client:
        assert get(client, "episode", run="", id=episode.episode_id)["reference"] == reference


def test_only_the_timeline_that_is_asked_for_is_flattened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    episode = branching_episode()
    timelines = episode.timelines
    with writing(tmp_path) as run, run.open_episodes() as store:
        store.append(episode, [0.5])
    flattened: list[int] = []
    flatten = Forest.timeline

    def counted(forest: Forest, number: int, *given: Any) -> Timeline:
        flattened.append(number)
        return flatten(forest, number, *given)

    monkeypatch.setattr(Forest, "timeline", counted)
    monkeypatch.setattr(Episode, "timelines", None)
    with serving(run.path) as client:
        asked = {"run": "", "id": episode.episode_id}
        told = get(client, "episode", **asked)["timelines"]
        tokens = [get(client, "tokens", timeline=number, **asked) for number in range(len(told))]
    assert flattened == [0, 1, 2]
    for number, timeline in enumerate(timelines):
        assert tokens[number]["ids"] == timeline.token_ids
        assert (told[number]["n_tokens"], told[number]["n_trained"]) == (len(timeline.token_ids), timeline.n_trained)
        assert told[number]["agent"] == timeline.agent
