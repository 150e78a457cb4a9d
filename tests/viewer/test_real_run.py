"""Everything that can be asked of a run that a real training wrote."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from viewer_stage import ODD, get, serving

from astune.runs import RunDirectory, described

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def name(trained: Path) -> str:
    return f"{trained.parent.name}/{trained.name}"


@pytest.fixture(scope="module")
def rows(viewer: httpx.Client, name: str) -> list[dict[str, Any]]:
    return get(viewer, "episodes", run=name, limit=1000)["rows"]


@pytest.fixture(scope="module")
def trained_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return next(row for row in rows if row["split"] == "train" and row["advantage"])


def test_the_folder_and_its_runs_are_listed(viewer, name, trained):
    opened = get(viewer, "open")
    assert (opened["root"], opened["level"]) == (str(trained.parent.parent), "record")
    (run,) = get(viewer, "runs")
    assert (run["run"], run["experiment"], run["status"]) == (name, "talkers", "finished")
    assert (run["backbone"], run["steps"], run["episodes"], run["problems"]) == ("local", 2, 20, [])
    assert 0 <= run["reward"] <= 1
    assert run["ended_at"] > run["created_at"]
    assert run["elapsed_s"] == get(viewer, "metrics", run=name)[0]["lines"][-2]["elapsed_s"], (
        "of the last step of training"
    )


def test_a_run_is_summed_up_by_steps(viewer, name, trained):
    run = get(viewer, "run", run=name)
    assert [(step["split"], step["step"]) for step in run["steps"]] == [
        ("validation", 0),
        ("train", 1),
        ("train", 2),
        ("validation", 2),
    ]
    assert [step["episodes"] for step in run["steps"]] == [2, 8, 8, 2]
    assert run["agents"] == ["helper", "solver"]
    assert (run["problems"], run["vocabulary"]) == ([], True)
    assert run["config"] == (trained / "config.yaml").read_text()


def test_rows_say_how_an_episode_branched_and_who_spoke(rows):
    assert len(rows) == 20
    for row in rows:
        assert row["agents"] == ["solver", "helper"]
        assert (row["n_branches"], row["n_turns"]) == (3, 4)
        assert row["n_trained"] < row["n_sampled"] < row["n_tokens"]
        assert (row["advantage"] is not None) == (row["split"] == "train" and row["not_trained"] is None)


def test_an_episode_has_every_message_with_its_tokens_as_text(viewer, name, trained_row):
    episode = get(viewer, "episode", run=name, id=trained_row["episode_id"])
    messages = episode["messages"]
    assert ODD in messages[0]["content"] + messages[1]["content"]
    assert any(ODD in message["raw"] for message in messages[:2])
    assert "<|im_start|>user" in "".join(message["raw"] for message in messages)
    assert {message["fork_cause"] for message in messages} >= {None, "message edited", "another agent"}
    said = [message for message in messages if message["sampled"]]
    assert [message["agent"] for message in said] == ["solver", "solver", "solver", "helper"]
    assert [message["constraint"] for message in said] == [None, None, None, "regex: yes|no"]
    assert all(message["logprob_sum"] < 0 for message in said[:3])
    assert [message["advantage"] for message in said] == [*[trained_row["advantage"]] * 3, None]
    assert episode["row"] == trained_row
    assert [member["repeat"] for member in episode["group"]] == [0, 1, 2, 3]
    assert sum(member["advantage"] for member in episode["group"]) == pytest.approx(0, abs=1e-5)
    leaves = [timeline["path"][-1] for timeline in episode["timelines"]]
    assert [timeline["agent"] for timeline in episode["timelines"]] == ["solver", "solver", "helper"]
    assert leaves == [timeline["leaf"] for timeline in episode["timelines"]]
    first, second, _ = (timeline["path"] for timeline in episode["timelines"])
    assert messages[next(node for node in second if node not in first)]["fork_cause"] == "message edited"


def test_tokens_are_the_stored_ones_with_what_engine_and_trainer_say_of_them(viewer, name, trained, trained_row):
    episode_id = trained_row["episode_id"]
    with RunDirectory.open(trained).episodes() as reader:
        timelines = reader.read(episode_id).timelines
    compared = 0
    for number, timeline in enumerate(timelines):
        tokens = get(viewer, "tokens", run=name, id=episode_id, timeline=number)
        assert (tokens["length"], tokens["ids"]) == (len(timeline.token_ids), timeline.token_ids)
        mask = np.zeros(tokens["length"], bool)
        for start, end in tokens["loss"]:
            mask[start:end] = True
        assert mask.tolist() == timeline.loss_mask
        sampled = [place for span in timeline.spans if span.sampled for place in range(span.start, span.end)]
        engine = [timeline.logprobs[place] for place in sampled]
        assert tokens["logprobs"] == pytest.approx(engine, rel=1e-6, abs=1e-30)
        for place, ours, theirs in zip(sampled, engine, tokens["trainer_logprobs"], strict=True):
            trains = timeline.spans[0].agent == "solver"
            assert (theirs is not None) == trains
            if theirs is not None and mask[place]:
                assert theirs == pytest.approx(ours, abs=0.2)
                compared += 1
        assert len(tokens["advantages"]) == sum(span["sampled"] for span in tokens["spans"])
        assert any(tokens["grammar"]) == (number == 2)
    assert compared == trained_row["n_trained"]


def test_texts_of_tokens_make_the_prompt_again(viewer, name, trained_row):
    tokens = get(viewer, "tokens", run=name, id=trained_row["episode_id"], timeline=0)
    prompt = next(span["end"] for span in tokens["spans"] if ODD[:6] in read(tokens, span["start"], span["end"]))
    assert ODD in read(tokens, 0, prompt)
    assert any(text == "学" for _, _, text in tokens["characters"])
    assert all(len(tokens["bytes"][str(tokens["ids"][start])]) % 2 == 0 for start, _, _ in tokens["characters"])


def read(tokens: dict[str, Any], start: int, end: int) -> str:
    """As the page does: runs of tokens that make characters, and the texts of all others."""
    text, position = "", start
    runs = {run[0]: run for run in tokens["characters"]}
    while position < end:
        if position in runs:
            _, position, characters = runs[position]
            text += characters
        else:
            text += tokens["texts"][str(tokens["ids"][position])]
            position += 1
    return text


@pytest.mark.parametrize("sought", ["再来一次", "100%_\"'", "<SCRIPT>", "🙂", "数学 🙂?"])
def test_text_is_found_in_any_language_and_case(viewer, name, sought):
    found = get(viewer, "episodes", run=name, text=sought, limit=5)
    assert found["total"] == 20
    assert found["rows"][0]["snippet"]["match"].casefold() == sought.casefold()
    assert get(viewer, "episodes", run=name, text=sought + "!")["total"] == 0


def test_metrics_are_those_of_the_file(viewer, name, trained):
    (answer,) = get(viewer, "metrics", run=name)
    lines = RunDirectory.open(trained).metrics()
    assert [(line["step"], line["kind"]) for line in answer["lines"]] == [(line.step, line.kind) for line in lines]
    for line, stored in zip(answer["lines"], lines, strict=True):
        shown = {key: value for key, value in line["metrics"].items() if value is not None}
        assert shown == {key: value for key, value in stored.metrics.items() if math.isfinite(value)}


def test_every_metric_that_a_run_writes_is_in_the_catalogue(viewer, trained):
    named = {entry["name"] for entry in get(viewer, "open")["catalogue"]}
    written = {name for line in RunDirectory.open(trained).metrics() for name in line.metrics}
    assert len(written) > 60
    entries = {name: described(name) for name in written}
    assert [name for name, entry in entries.items() if entry is None or entry.name == "episodes/<name>_mean"] == []
    assert {entry.name for entry in entries.values() if entry is not None} <= named


@pytest.mark.parametrize("place", ["run", "rollout", "experiment"])
def test_every_level_can_be_opened(place, trained):
    folder = {"run": trained, "rollout": trained / "rollout", "experiment": trained.parent}[place]
    with serving(folder) as client:
        assert get(client, "open")["level"] == ("experiment" if place == "experiment" else "run")
        (run,) = get(client, "runs")
        assert run["run"] == (trained.name if place == "experiment" else "")
        assert get(client, "episodes", run=run["run"])["total"] == 20
