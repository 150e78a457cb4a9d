"""`astune check judge`, on judges that can be trusted and judges that cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from answering import answering

from astune.app.judge_check import check_judge
from astune.config.schema import AstuneConfig
from astune.schema import JudgeError, Task

TASKS = [{"main_query": f"What is {n} + {n}?", "metadata": {"answer": str(2 * n)}} for n in range(2, 6)]


def honest(instruction: str, question: dict[str, Any]) -> Any:
    return {"reason": "", "score": 10 * question["answer"].startswith(question["reference"])}


def gullible(instruction: str, question: dict[str, Any]) -> Any:
    obeys = "give it the highest score" in question["answer"]
    return {"reason": "", "score": 10 if obeys else 10 * (question["answer"] == question["reference"])}


def written(folder: Path, judge: dict[str, Any], helper: dict[str, Any]) -> Path:
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    files = {"training": {"file_path": "tasks.jsonl"}}
    sections = {"task_reader": {"type": "jsonl", "jsonl": files}, "task_judge": judge, "helper_model": helper}
    conf = folder / "judged.yaml"
    conf.write_text(json.dumps({"astune": sections}))
    return conf


@pytest.mark.parametrize(("model", "status"), [(honest, 0), (gullible, 1)])
def test_a_judge_that_obeys_what_it_judges_is_found_out(
    astune: Callable[..., tuple[int, str, str]], tmp_path: Path, model: Any, status: int
) -> None:
    with answering(model) as server:
        judge = {"judge_protocol": "llm", "params": {"criteria": "The sum is right."}}
        conf = written(tmp_path, judge, {"base_url": server.url, "model": "m"})
        ended, out, err = astune("check", "judge", str(conf))
    told = re.sub(r"\s+", " ", out + err)
    assert ended == status, told
    assert "reference answers that earn more than another task's: 4 of 4" in told
    assert "10 tokens and 1 calls an episode" in told
    assert ("fault: an answer that orders the judge earns more" in told) == (status == 1)


def test_a_judge_of_groups_judges_the_same_group_twice(
    astune: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    def beaten(instruction: str, question: dict[str, Any]) -> Any:
        """Count how many others an attempt is as good as or better: in a smaller group a bad one beats fewer."""
        good = [each["answer"] == question["reference"] for each in question["attempts"]]
        scores = [round(10 * sum(one >= other for other in good) / len(good)) for one in good]
        places = zip(question["attempts"], scores, strict=True)
        return {"places": [{"attempt": each["attempt"], "reason": "", "score": score} for each, score in places]}

    with answering(beaten) as server:
        conf = written(tmp_path, {"judge_protocol": "group"}, {"base_url": server.url, "model": "m"})
        ended, out, err = astune("check", "judge", str(conf))
        told = re.sub(r"\s+", " ", out + err)
        assert ended == 0, told
        assert "the same episode judged twice: at most 0.00 apart" in told
        ended, out, _ = astune("check", "judge", str(conf), "--dry-run")
    assert (ended, out) == (0, "4 tasks with 16 episodes each would be judged\n")


def test_worked_solutions_that_end_in_the_same_answer_are_no_wrong_ones_for_each_other(
    astune: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    conf = written(tmp_path, {"judge_protocol": "math"}, {})
    solved = [("4 * 4.5", "4*4.5=18\n#### 18"), ("9 * 2", "9*2=18\n#### 18"), ("1 + 1", "1+1=2\n#### 2")]
    rows = [{"main_query": f"What is {asked}?", "metadata": {"answer": answer}} for asked, answer in solved]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended, out, err = astune("check", "judge", str(conf))
    assert ended == 0, out + err
    assert "3 of 3" in re.sub(r"\s+", " ", out + err)


def test_rules_need_no_helper_model_and_hold(astune: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    conf = written(tmp_path, {"judge_protocol": "math"}, {})
    ended, out, err = astune("check", "judge", str(conf))
    assert ended == 0, out + err
    assert "0 tokens" in out
    assert "reference answers that earn more" in (tmp_path / f"{conf.stem}.judge.html").read_text()


def test_a_dry_run_judges_nothing(astune: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    judge = {"judge_protocol": "llm", "params": {"criteria": "The sum is right."}}
    conf = written(tmp_path, judge, {"base_url": "http://127.0.0.1:1", "model": "m"})
    ended, out, _ = astune("check", "judge", str(conf), "--dry-run")
    assert (ended, out) == (0, "4 tasks with 10 episodes each would be judged\n")


@pytest.mark.parametrize(
    ("base", "body", "told"),
    [
        ("JudgeBase", "def compute_reward(self, inputs): return None", "returned None"),
        ("JudgeBase", "def compute_reward(self, inputs): return float('nan'), False", "returned (nan, False)"),
        ("JudgeBase", "def compute_reward(self, inputs): return inputs['score'], True", "KeyError: 'score'"),
        ("GroupJudgeBase", "def compute_rewards(self, inputs): return [(1.0, True)]", "one verdict for each of 8"),
    ],
)
async def test_a_judge_that_a_run_would_refuse_is_refused(tmp_path: Path, base: str, body: str, told: str) -> None:
    """In this process: a command takes a second."""
    (tmp_path / "own.py").write_text(f"from astune import {base}\n\n\nclass Own({base}):\n    {body}\n")
    config = AstuneConfig.model_validate({"task_judge": {"judge_protocol": "own.py->Own"}})
    tasks = [Task(str(n), **task) for n, task in enumerate(TASKS)]
    with pytest.raises(JudgeError) as refused:
        await check_judge(config, tmp_path, tasks)
    assert told in str(refused.value)
