"""Rubrics learned from labels with a model that follows rules, over a real server, by the commands themselves."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml
from answering import AnsweringServer, answering
from examples import some

from astune.cli.app import run
from astune.config.rubrics import RubricsConfig
from astune.config.schema import AstuneConfig
from astune.rubrics import agreement, read_examples
from astune.rubrics.selection import select
from astune.runs.interval import wilson_interval
from astune.schema import ConfigError, Task, TaskReaderError
from astune.task_judge import GroupJudgeBase, load_judge

WORDS = {"polite": "please", "thankful": "thank", "precise": "cup", "short": "quick"}
"""A quality of the answers of these tests, and the word that shows it."""
MATTERS = {"polite": 4.0, "thankful": 3.0, "precise": 2.0}
"""What the experts who labelled them care about; nobody minds whether they are short."""
MISTAKES = 0.05
"""The rate at which the model of these tests marks wrongly, by a seed."""


def quality(text: str) -> str | None:
    return next((name for name in WORDS if name in text), None)


def has(answer: str, name: str) -> bool:
    return WORDS[name] in answer


def careful_model(instruction: str, question: dict[str, Any]) -> Any:
    """It proposes qualities in which two answers differ, marks by looking for their words, and errs now and then. Asked
    for a score without rubrics, it likes long answers, as models do."""
    if "answers" in question:
        return {
            "marks": [
                {"answer": a["answer"], "rubric": r["rubric"], "met": marked(a["text"], r["text"])}
                for a in question["answers"]
                for r in question["rubrics"]
            ]
        }
    if "better answer" in question:
        better, worse = question["better answer"], question["worse answer"]
        differing = [name for name in WORDS if has(better, name) and not has(worse, name)] or ["long"]
        return {"rubrics": [f"The answer is {name}." for name in differing]}
    if "rubrics" in question:
        return {"themes": [{"theme": "manners", "rubrics": [each["rubric"] for each in question["rubrics"]]}]}
    if "attempts" in question:
        places = [
            {"attempt": e["attempt"], "reason": "", "score": min(10, len(e["answer"]) / 10)}
            for e in question["attempts"]
        ]
        return {"places": places}
    if "answer" in question:
        return {"reason": "", "score": min(10, len(question["answer"]) / 10)}
    return {"rubrics": [f"The answer is {name}." for name in WORDS]}


def liking(answer: str) -> dict[str, Any]:
    return {"reason": "it is long", "score": min(10, len(answer) / 10)}


def marked(answer: str, rubric: str) -> str:
    name = quality(rubric)
    met = name is not None and has(answer, name)
    wrong = random.Random(f"{answer} {rubric}").random() < MISTAKES
    return "yes" if met != wrong else "no"


def labelled(seed: int, n: int) -> list[dict[str, Any]]:
    """Answers with the experts' scores from 0 to 9; some are long, which means nothing."""
    draw = random.Random(seed)
    rows = []
    for number in range(n):
        shown = [name for name in WORDS if draw.random() < 0.5]
        answer = " ".join(["Tea", *(WORDS[name] for name in shown), *["and so on"] * draw.randrange(20), str(number)])
        score = sum(MATTERS.get(name, 0.0) for name in shown)
        rows.append({"main_query": f"Ask for tea, {seed}.{number}.", "metadata": {"answer": answer, "score": score}})
    return rows


def ranked(seed: int, n: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(n):
        each = sorted(labelled(seed * 1000 + number, 4), key=lambda row: -row["metadata"]["score"])
        scores = sorted({row["metadata"]["score"] for row in each}, reverse=True)
        candidates = [
            {"answer": row["metadata"]["answer"], "rank": 1 + scores.index(row["metadata"]["score"])} for row in each
        ]
        rows.append({"main_query": f"Ask for tea, {number}.", "metadata": {"candidates": candidates}})
    return rows


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTUNE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    with answering(careful_model) as server:
        yield server


@pytest.fixture
def astune(capsys: pytest.CaptureFixture[str], server: AnsweringServer) -> Callable[..., str]:
    def call(*arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            run([*arguments, "--set", f"helper_model.base_url={server.url}", "--set", "helper_model.model=m"])
        captured = capsys.readouterr()
        assert int(ended.value.code or 0) == status, captured.out + captured.err
        return re.sub(r"\s+", " ", captured.out + captured.err)

    return call


def accuracies(told: str) -> dict[str, tuple[float, float, float]]:
    found = re.findall(r"│ (plain judge|rubrics) +│ ([\d.]+) \[([\d.]+), ([\d.]+)\]", told)
    return {name: (float(rate), float(low), float(high)) for name, rate, low, high in found}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pointwise", pytest.param("listwise", marks=pytest.mark.slow)])
def test_rubrics_of_seventy_labels_beat_the_plain_judge_on_labels_they_have_not_seen(
    astune: Callable[..., str], tmp_path: Path, mode: str
) -> None:
    make = labelled if mode == "pointwise" else ranked
    learned = written(tmp_path / "labels.jsonl", make(1, 70))
    fresh = written(tmp_path / "fresh.jsonl", make(2, 70))
    out = tmp_path / "rubrics.yaml"
    told = astune("rubrics", "learn", str(learned), "--out", str(out), "--set", f"rubrics.grader_mode={mode}")
    kept = {
        quality(rubric["text"]): rubric["weight"]
        for theme in yaml.safe_load(out.read_text())["themes"]
        for rubric in theme["rubrics"]
    }
    assert set(MATTERS) <= set(kept)
    assert kept["polite"] == max(kept.values())
    assert kept.get("short", 0) < 0.2, "what does not matter weighs little, or is left out"
    assert "rubrics in" in told
    assert all(text in (tmp_path / "rubrics.report.html").read_text() for text in ("<!doctype html>", "rubrics in"))
    told = astune("rubrics", "check", str(out), str(fresh))
    assert "plain judge" in (tmp_path / "rubrics.check.html").read_text()
    measured = accuracies(told)
    assert measured["rubrics"][1] > measured["plain judge"][2], "the intervals are apart"
    assert measured["rubrics"][0] > 0.85


def test_the_second_time_nothing_is_asked_and_the_file_is_the_same(
    astune: Callable[..., str], server: AnsweringServer, tmp_path: Path
) -> None:
    learned = str(written(tmp_path / "labels.jsonl", labelled(1, 20)))
    astune("rubrics", "learn", learned, "--out", str(tmp_path / "one.yaml"))
    asked = len(server.bodies)
    astune("rubrics", "learn", learned, "--out", str(tmp_path / "two.yaml"))
    assert len(server.bodies) == asked
    assert (tmp_path / "one.yaml").read_bytes() == (tmp_path / "two.yaml").read_bytes()
    for out, error in ((tmp_path, "is a folder"), (Path(learned), "is read, and would be overwritten")):
        assert error in astune("rubrics", "learn", learned, "--out", str(out), status=2)


def test_rubrics_come_from_a_description_alone_and_judge_a_group(
    astune: Callable[..., str], server: AnsweringServer, tmp_path: Path
) -> None:
    out = tmp_path / "rubrics.yaml"
    astune("rubrics", "learn", "--description", "An agent orders tea.", "--out", str(out))
    helper = {"base_url": server.url, "model": "m"}
    protocol = {"judge_protocol": "rubrics", "params": {"file": str(out)}}
    judge = load_judge(AstuneConfig.model_validate({"helper_model": helper, "task_judge": protocol}))
    assert isinstance(judge, GroupJudgeBase)


async def test_a_rubrics_judge_gives_the_weighted_part_that_is_met(server: AnsweringServer, tmp_path: Path) -> None:
    rubrics = [{"text": "The answer is polite.", "weight": 3.0}, {"text": "The answer is precise."}]
    file = tmp_path / "rubrics.yaml"
    file.write_text(yaml.safe_dump({"themes": [{"theme": "manners", "rubrics": rubrics}]}))
    config = {
        "helper_model": {"base_url": server.url, "model": "m"},
        "task_judge": {"judge_protocol": "rubrics", "params": {"file": str(file)}},
    }
    judge = load_judge(AstuneConfig.model_validate(config))
    assert judge is not None
    from astune.rollout.verdict import TaskCoreArg

    core = TaskCoreArg(Task(task_id="t", main_query="Ask for tea."))
    reward: Any = await judge.compute_reward({"task_core_arg": core, "final_answer": "Tea please"})  # type: ignore[misc]
    assert (reward.raw_reward, reward.is_success) == (0.75, True)
    assert reward.metadata["rubrics"] == {"The answer is polite.": 1.0, "The answer is precise.": 0.0}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("themes: []", "themes: List should have at least 1 item"),
        ("themes: [{theme: a, rubrics: [{text: x, wieght: 1}]}]", r"themes.0.rubrics.0.wieght"),
        ("themes: [{theme: a, rubrics: [{text: x, weight: .inf}]}]", r"rubrics.0.weight: Input should be a finite"),
        ("[", "holds no rubrics"),
    ],
)
def test_a_file_that_holds_no_rubrics_is_named_with_what_is_wrong(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "rubrics.yaml"
    file.write_text(text)
    config = {
        "helper_model": {"base_url": "http://127.0.0.1:1"},
        "task_judge": {"judge_protocol": "rubrics", "params": {"file": str(file)}},
    }
    with pytest.raises(ConfigError, match=error):
        load_judge(AstuneConfig.model_validate(config))


@pytest.mark.parametrize(
    ("row", "mode", "error"),
    [
        ({"metadata": {"answer": "x"}}, "pointwise", "has the score None; metadata.score is a number"),
        ({"metadata": {"answer": "x", "score": 11}}, "pointwise", "has the score 11; it is between"),
        (
            {"metadata": {"answer": "x", "score": 10**400}},
            "pointwise",
            r"has the score 10{400}; metadata.score is",
        ),
        ({"metadata": {"score": 1}}, "pointwise", "has no text 'answer'; name the field"),
        ({"metadata": {"answer": "x", "score": 1}}, "listwise", "has no two candidates; listwise data"),
        (
            {"metadata": {"candidates": [{"answer": "x", "rank": 1}, {"answer": "y"}]}},
            "listwise",
            "has the ranks",
        ),
        (
            {"metadata": {"candidates": [{"answer": "x", "rank": 10**400}, {"answer": "y", "rank": True}]}},
            "listwise",
            "has the ranks",
        ),
    ],
)
def test_a_labelled_line_that_is_wrong_is_named(tmp_path: Path, row: dict[str, Any], mode: str, error: str) -> None:
    path = written(tmp_path / "labels.jsonl", [{"main_query": "q", "task_id": "t7"} | row])
    with pytest.raises(TaskReaderError, match=rf"labels\.jsonl: task t7 {error}"):
        read_examples(path, RubricsConfig(grader_mode=mode))  # type: ignore[arg-type]


def test_selection_takes_what_adds_information_and_not_the_same_twice() -> None:
    draw = np.random.default_rng(0)
    good = draw.choice([0.0, 1.0], size=400, p=[0.3, 0.7])
    other = draw.choice([-1.0, 0.0, 1.0], size=400, p=[0.1, 0.4, 0.5])
    noise = draw.choice([-1.0, 0.0, 1.0], size=400)
    chosen = select(np.stack([noise, good, good, other], axis=1), most=4)
    assert [each.number for each in chosen] == [1, 3] or [each.number for each in chosen] == [3, 1]
    assert all(each.gain_bits > 0.01 for each in chosen)


@pytest.mark.parametrize(
    ("sizes", "common", "wide"),
    some(
        [
            ([20], 9, 0.6),  # labels of which one is common
            ([6], 1, 0.7),
            ([20], 1, 0.4),
            ([2] * 5, 1, 0.85),
            ([4] * 5, 1, 0.6),
            ([4] * 20, 1, 0.3),
            ([30] + [4] * 5, 1, 0.95),
            ([8] + [4] * 10, 1, 0.45),
        ],
        1,
    ),
)
def test_the_interval_of_95_percent_is_that_of_other_answers_like_these(
    sizes: list[int], common: int, wide: float
) -> None:
    """Resampled groups, or answers, would give intervals that hold in 30 to 90 %."""
    draw = random.Random(0)

    def group(n: int) -> list[tuple[float, float]]:
        labels = draw.choices([0.0, 1.0, 2.0], [common, 1, 1], k=n)
        of_all = draw.choice([0.2, 0.5, 1.2])  # hard and easy questions, which one group says nothing of
        noises = [of_all if len(sizes) > 1 else draw.choice([0.2, 0.5, 1.2]) for _ in labels]
        return [(label, round(label + draw.gauss(0, noise))) for label, noise in zip(labels, noises, strict=True)]

    truth = agreement([group(n) for _ in range(max(2, 4000 // sum(sizes))) for n in sizes])
    tried = [agreement([*map(group, sizes), [(1.0, 0.5)]]) for _ in range(300)]
    found = [each for each in tried if each.pairs]
    assert fmean(each.accuracy_interval[0] <= truth.accuracy <= each.accuracy_interval[1] for each in found) >= 0.9
    if common == 1:  # a few answers with a rare label have more ties or fewer than others
        assert fmean(each.tau_interval[0] <= truth.tau <= each.tau_interval[1] for each in found) >= 0.85
    assert all(each.tau_interval[0] <= each.tau <= each.tau_interval[1] + 1e-9 for each in found)
    assert wide / 2 < fmean(high - low for low, high in (each.accuracy_interval for each in found)) < wide


def test_agreement_counts_pairs_with_ties_as_half_and_taus_as_kendall_did() -> None:
    found = agreement([[(1.0, 0.1), (2.0, 0.2), (3.0, 0.2)]])
    assert found.pairs == 3
    assert found.accuracy == pytest.approx(2.5 / 3)
    assert found.tau == pytest.approx(2 / (3 * 2) ** 0.5)  # 2 right, none wrong, one tie of grades
    perfect = agreement([[(1.0, 1.0), (2.0, 5.0)]] * 30)
    assert (perfect.accuracy, perfect.tau) == (1.0, 1.0)
    assert perfect.accuracy_interval == pytest.approx(wilson_interval(30, 30))
    nothing = agreement([[(1.0, 0.5), (1.0, 0.7)]])
    assert (nothing.pairs, nothing.tau) == (0, 0.0)
    assert all(map(math.isnan, (nothing.accuracy, *nothing.accuracy_interval, *nothing.tau_interval)))
    constant = agreement([[(1.0, 0.5), (2.0, 0.5), (3.0, 0.5)]] * 5)
    assert (constant.accuracy, constant.tau, constant.tau_interval) == (0.5, 0.0, (-1.0, 1.0))
