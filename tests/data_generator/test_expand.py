"""Tasks from a few examples, with executable checkers, by the command and as a reader."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from answering import answering
from rule_models import SumModel, command, use_own_cache

from astune.config.loader import load_config
from astune.config.schema import AstuneConfig
from astune.data_generator.checkers import judged, wrong_answers
from astune.rollout.verdict import TaskCoreArg
from astune.schema import ConfigError, JudgeError, Task, TaskReaderError
from astune.task_judge import load_judge
from astune.task_reader import open_task_reader
from astune.task_reader.data_reader import tasks_in
from tutorial.example_calculator.tasks import make_tasks

AXES = "task_reader.data_generation.axes=[wording,numbers,harder,easier]"


@pytest.fixture(autouse=True)
def _own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smol_folder: Path) -> None:
    use_own_cache(tmp_path / "cache", monkeypatch)


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    return written_seeds(tmp_path / "seeds.jsonl", 20)


def written_seeds(path: Path, number: int) -> Path:
    """Problems of the calculator's tutorial, each with its answer and nothing else."""
    rows = [
        {"task_id": task.task_id, "main_query": task.main_query, "metadata": {"answer": task.metadata["answer"]}}
        for task in make_tasks("train", number)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def solved(task: dict[str, Any]) -> int:
    """The answer by the expression of the example that a task was made of, which no model has seen."""
    expressions = {each.task_id: each.metadata["expression"] for each in make_tasks("train", 20)}
    one, two = (int(each) for each in re.findall(r"\d+", task["main_query"]))
    return one - two if "-" in expressions[task["metadata"]["example"]] else one + two


@pytest.mark.slow
def test_variations_are_kept_where_their_checkers_agree(tmp_path: Path, seeds: Path) -> None:
    model = SumModel()
    with answering(model) as server:
        sets = ["--set", f"helper_model.base_url={server.url}", "--set", AXES]
        assert command(["data", "expand", str(seeds), "--out", str(tmp_path / "t.jsonl"), "--num", "100", *sets]) == 0
    training, held_out = ([json.loads(x) for x in (tmp_path / f"t{end}.jsonl").open()] for end in ("", ".held_out"))
    tasks = training + held_out
    assert len(tasks) == 100
    assert len({task["task_id"] for task in tasks}) == 100
    assert {task["metadata"]["axis"] for task in tasks} == {"wording", "numbers", "harder", "easier"}
    wrong = [task for task in tasks if int(task["metadata"]["answer"]) != solved(task)]
    assert len(wrong) <= 2, [task["main_query"] for task in wrong]
    assert not {t["metadata"]["example"] for t in training} & {t["metadata"]["example"] for t in held_out}
    assert all("def check" in task["metadata"]["checker"] for task in tasks)
    originals = {task.main_query for task in tasks_in(seeds)}
    assert not originals & {task["main_query"] for task in tasks}


@pytest.mark.slow
async def test_a_checker_is_run_in_the_sandbox_and_forges_nothing() -> None:
    config = AstuneConfig().sandbox
    says = "def check(answer):\n    return float(answer) == 7"
    assert await judged(says, ["7", "7.0", "8", "seven", ""], config) == [True, True, False, False, False]
    assert await judged("def check(answer):\n    return 'yes'", ["7"], config) == [False]
    for broken in ("def chek(answer): pass", "check = ", "import os\nos._exit(0)", "while True: pass", "print('1')"):
        assert await judged(broken, ["7"], config) is None, broken
    assert await judged("print('1')\ndef check(answer):\n    print('11'); return False", ["7"], config) == [False]
    hostile = "def check(answer):\n    exec(answer); return False"
    assert await judged(hostile, ["print('1' * 40); import os; os._exit(0)"], config) is None


def test_wrong_answers_are_other_answers() -> None:
    assert set(wrong_answers("7", ["7.0", "9"])) == {"", "I do not know.", "8", "6", "77", "-7", "9"}
    assert "0" not in wrong_answers("0", [])


@pytest.mark.slow
def test_the_reader_makes_tasks_once_and_trains_on_the_examples_too(tmp_path: Path, seeds: Path) -> None:
    conf = tmp_path / "exp.yaml"
    with answering(SumModel()) as server:
        conf.write_text(
            f"astune:\n  helper_model: {{base_url: '{server.url}'}}\n  task_reader:\n    type: data_generation\n"
            f"    data_generation: {{seeds: seeds.jsonl, number: 30, axes: [numbers, wording]}}\n"
            "  task_judge: {reference_field: solution}\n"
        )
        rows = [json.loads(line) for line in seeds.open()]
        for row in rows:
            row["metadata"] = {"solution": row["metadata"]["answer"]}
        seeds.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = load_config(conf)
        said: list[str] = []
        first = open_task_reader(config.task_reader, base_dir=tmp_path, experiment=config).read(said.append)
        asked = len(server.bodies)
        again = open_task_reader(config.task_reader, base_dir=tmp_path, experiment=config).read(said.append)
        assert (again, len(server.bodies)) == (first, asked)
        for row in rows:
            row["metadata"]["kind"] = "sum"
        seeds.write_text("".join(json.dumps(row) + "\n" for row in rows))
        edited = open_task_reader(config.task_reader, base_dir=tmp_path, experiment=config).read()
        assert sum(task.metadata.get("kind") == "sum" for task in edited.training) == 16
        assert len(server.bodies) == asked
    assert "making tasks: 30 of 30" in said
    assert "made before" in said[-1]
    assert len(first.training) + len(first.validation) == 30 + 20
    held = {task.task_id for task in first.validation}
    assert all(task.metadata.get("example", task.task_id) not in held for task in first.training)
    assert sum("checker" not in task.metadata for task in first.training) == 16
    assert all(task.metadata["solution"] for task in first.training), "the judge looks there"


def test_a_plan_asks_the_helper_model_nothing(
    tmp_path: Path, seeds: Path, capsys: pytest.CaptureFixture[str], tiny_folder: Path
) -> None:
    (tmp_path / "plain.py").write_text(
        "from astune import Workflow\n\n\nclass Plain(Workflow):\n"
        "    async def execute(self, task, proxy):\n        await proxy.achat(task.init_messages)\n"
    )
    with answering(SumModel()) as server:
        conf = tmp_path / "exp.yaml"
        conf.write_text(
            f"astune:\n  model: {{path: {tiny_folder}}}\n  helper_model: {{base_url: '{server.url}'}}\n"
            f"  rollout: {{workflow: plain.py->Plain}}\n  task_judge: {{judge_protocol: checker}}\n"
            f"  task_reader: {{type: data_generation, data_generation: {{seeds: seeds.jsonl, number: 30}}}}\n"
        )
        assert command(["--conf", str(conf), "--dry-run"]) == 0
        assert not server.bodies
    assert "30 that the helper model makes" in capsys.readouterr().out


def test_an_example_without_an_answer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = tmp_path / "seeds.jsonl"
    seeds.write_text('{"main_query": "How many?", "task_id": "lonely"}\n')
    assert command(["data", "expand", str(seeds), "--out", str(tmp_path / "t.jsonl")]) == 1
    assert "lonely has no metadata.answer" in " ".join(capsys.readouterr().err.split())


def test_what_is_read_is_never_written_over(tmp_path: Path, seeds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, folder = seeds.read_text(), tmp_path / "folder"
    folder.mkdir()
    for out, error in ((seeds, "is read, and would be overwritten"), (folder, "is a folder")):
        assert command(["data", "expand", str(seeds), "--out", str(out)]) == 2
        assert error in " ".join(capsys.readouterr().err.split())
    assert seeds.read_text() == written


def test_without_material_or_helper_model_the_reader_says_what_is_missing(tmp_path: Path, seeds: Path) -> None:
    config = AstuneConfig.model_validate({"task_reader": {"type": "data_generation"}})
    with pytest.raises(TaskReaderError, match="nothing to make tasks of"):
        open_task_reader(config.task_reader, experiment=config).read()
    settings = {"type": "data_generation", "data_generation": {"seeds": str(seeds)}}
    config = AstuneConfig.model_validate({"task_reader": settings})
    with pytest.raises(ConfigError, match=r"helper_model\.base_url is empty"):
        open_task_reader(config.task_reader, experiment=config).read()


async def test_the_judge_runs_the_checker_of_the_task() -> None:
    config = AstuneConfig.model_validate({"task_judge": {"judge_protocol": "checker"}})
    judge: Any = load_judge(config)
    source = "def check(answer):\n    return float(answer) == 30 + 12"
    task = Task("t", main_query="30 and 12?", metadata={"answer": "42", "checker": source})
    for reply, right in ((r"it is \boxed{42}", True), ("42", True), (r"\boxed{41}", False), ("no idea", False)):
        reward = await judge.compute_reward({"task_core_arg": TaskCoreArg(task), "final_answer": reply})
        assert (reward.raw_reward, reward.is_success) == (float(right), right), reply
    example = Task("e", main_query="30 and 12?", metadata={"answer": "42"})
    for reply, right in (("the answer is 42", True), (r"\boxed{41}", False)):
        reward = await judge.compute_reward({"task_core_arg": TaskCoreArg(example), "final_answer": reply})
        assert reward.is_success == right
    with pytest.raises(JudgeError, match=r"no 'answer'"):
        await judge.compute_reward({"task_core_arg": TaskCoreArg(Task("t", main_query="q")), "final_answer": "42"})
