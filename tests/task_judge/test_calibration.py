"""Rewards of a judge as people's labels find them worth, group by group."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from answering import answering
from hypothesis import given
from hypothesis import strategies as st

from astune.cli.app import run
from astune.config import load_config
from astune.config.rubrics import RubricsConfig
from astune.rollout.verdict import TaskCoreArg
from astune.rubrics import read_examples
from astune.schema import ConfigError, JudgeError, Task, TaskReaderError
from astune.task_judge import load_judge
from astune.task_judge.calibration import EVERY, Calibration, Label, errors

QUALITY = st.floats(0, 1, allow_nan=False)
KINDNESS = {"essay": 0.5, "sum": -0.3}
"""The judge of these tests is lenient on essays and strict on sums."""


def judging(instruction: str, question: dict[str, Any]) -> Any:
    kind, quality = question["answer"].split()
    return {"reason": "", "score": min(10.0, max(0.0, 10 * (float(quality) + KINDNESS[kind] * (1 - float(quality)))))}


def labelled(n: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    rows = []
    for number in range(n):
        kind, quality = draw.choice([*KINDNESS]), draw.random()
        metadata = {"answer": f"{kind} {quality:.3f}", "score": round(10 * quality, 2), "kind": kind}
        rows.append({"main_query": f"Write one, {number}.", "metadata": metadata})
    return rows


def written(folder: Path, url: str, **judge: Any) -> Path:
    first = {"judge": "llm", "params": {"criteria": "It is good."}, **judge}
    shaped = {"judge": "length_penalty", "weight": 0.5, "params": {"free": 1, "most": 3}}
    protocol = {"judge_protocol": [first, shaped], "reference_field": "reference"}
    sections = {"task_judge": protocol, "helper_model": {"base_url": url, "model": "m"}, "rubrics": {"max_score": 10}}
    conf = folder / "judged.yaml"
    conf.write_text(json.dumps({"astune": sections}))
    return conf


async def test_a_calibrated_judge_is_neither_lenient_nor_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASTUNE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled(80)))
    with answering(judging) as server:
        conf, out = written(tmp_path, server.url), tmp_path / "calibration.yaml"
        words = ["check", "judge", str(conf), "--labelled", str(tmp_path / "labels.jsonl"), "--calibrate", str(out)]
        status = await _status([*words, "--by", "kind"])
        told = " ".join(capsys.readouterr().out.split())
        assert status == 0
        before, after = (float(word) for word in told.split("rewards are ")[1].split()[:8] if word[0].isdigit())
        assert after < 0.05 < 0.15 < before
        judge = load_judge(
            load_config(written(tmp_path, server.url, calibration="calibration.yaml")), base_dir=tmp_path
        )
        assert judge is not None
        for kind in KINDNESS:
            for quality in (0.4, 0.6, 0.9):
                core = TaskCoreArg(Task("t", main_query="Write one.", metadata={"kind": kind}))
                steps = [[{"role": "assistant", "content": "one two three"}]]
                inputs = {"task_core_arg": core, "final_answer": f"{kind} {quality}", "grouped_steps": steps}
                reward: Any = await judge.compute_reward(inputs)  # type: ignore[misc]
                assert reward.raw_reward == pytest.approx(quality - 0.5, abs=0.06)  # the length costs 0.5
                own = reward.metadata["LlmJudge"]
                assert own["uncalibrated"] == pytest.approx(quality + KINDNESS[kind] * (1 - quality), abs=1e-6)
        core = TaskCoreArg(Task("t", main_query="Write one."))
        with pytest.raises(JudgeError, match=r"metadata\.kind"):
            await judge.compute_reward({"task_core_arg": core, "final_answer": "sum 1", "grouped_steps": []})  # type: ignore[misc]


async def _status(words: list[str]) -> int:
    import asyncio

    def call() -> int:
        with pytest.raises(SystemExit) as ended:
            run(words)
        return int(ended.value.code or 0)

    return await asyncio.to_thread(call)


@given(st.lists(st.tuples(QUALITY, QUALITY), min_size=1, max_size=60), st.lists(QUALITY, min_size=2, max_size=5))
def test_a_curve_never_turns_the_order_of_rewards_around(pairs: list[tuple[float, float]], asked: list[float]) -> None:
    curve = Calibration.fitted([Label("", reward, label) for reward, label in pairs]).groups[EVERY]
    worth = [curve.worth(each) for each in sorted(asked)]
    assert worth == sorted(worth)
    assert all(-1e-6 <= each <= 1 + 1e-6 for each in worth)


def test_a_group_with_few_labels_has_the_curve_of_all() -> None:
    labels = [Label("many", n / 20, n / 20) for n in range(20)] + [Label("few", 0.5, 0.0)]
    calibration = Calibration.fitted(labels, "kind")
    assert set(calibration.groups) == {EVERY, "many"}
    assert calibration.curve("few") == calibration.curve("never seen") == calibration.groups[EVERY]


def test_labels_that_name_no_group_leave_the_curve_of_all_as_it_is() -> None:
    labels = [Label("essay", n / 20, n / 20) for n in range(20)] + [Label("", n / 20, 0.0) for n in range(20)]
    calibration = Calibration.fitted(labels, "kind")
    assert set(calibration.groups) == {EVERY, "essay"}
    assert calibration.groups[EVERY].labels == 40


@pytest.mark.parametrize("kind", [{}, {"kind": ""}, {"kind": None}])
def test_a_label_without_its_group_is_named_by_its_line(tmp_path: Path, kind: dict[str, Any]) -> None:
    rows = labelled(2)
    rows[1]["metadata"] = {"answer": "x", "score": 1, **kind}
    path = tmp_path / "labels.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    with pytest.raises(TaskReaderError, match=r"labels\.jsonl:3: there is no metadata\.kind"):
        read_examples(path, RubricsConfig(max_score=10), "kind")
    assert len(read_examples(path, RubricsConfig(max_score=10))) == 2


def test_a_judge_that_is_right_is_left_as_it_is() -> None:
    labels = [Label("", n / 40, n / 40) for n in range(41)]
    assert max(after for _, after in errors(labels)) < 0.03


@pytest.mark.parametrize("text", ["[", "groups: {}", "groups: {'': {labels: 1, points: []}}", "by: 3"])
def test_a_file_that_is_no_calibration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load_judge(load_config(written(tmp_path, "http://127.0.0.1:1", calibration="c.yaml")), base_dir=tmp_path)


@pytest.mark.parametrize(
    "points", ["[1, 0.9], [0, 0.1]", "[0, 0.9], [1, 0.1]", "[0, 0], [.nan, 1]", "[0, 0], [1, .inf]"]
)
def test_an_edited_curve_that_does_not_increase_is_refused(tmp_path: Path, points: str) -> None:
    (tmp_path / "own.yaml").write_text(f"groups: {{'': {{labels: 2, points: [{points}]}}}}\n")
    with pytest.raises(ConfigError, match="must not decrease"):
        Calibration.load(tmp_path / "own.yaml")


@pytest.mark.parametrize("scores", [(5, 5), (10, 0)])
def test_scores_without_a_range_are_refused(scores: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="`min_score` must be below `max_score`"):
        RubricsConfig(min_score=scores[0], max_score=scores[1])
