from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest
import torch
from safetensors.torch import save_file

from astune.backbone.cluster.job import EngineResume, Job, StepsToCome
from astune.backbone.cluster.work_order import WorkOrder
from astune.config.schema import AstuneConfig
from astune.runs import CheckpointStore, EpisodeStore, MetricsLog
from astune.schema import Task, TaskReaderError, TrainerError
from astune.task_reader import TaskOrder
from astune.trainer.ledger import StepLedger
from astune.trainer.resume_point import ResumePoint

CONFIG = AstuneConfig.model_validate({"rollout": {"num_repeat": 3}, "trainer": {"tasks_per_step": 4, "total_steps": 6}})
TASKS = [Task(str(number), "?") for number in range(8)]


def ids(steps: StepsToCome) -> list[str]:
    return [task.task_id for step in steps.tasks for task in step]


def test_tasks_come_as_the_local_trainer_takes_them_however_many_epochs() -> None:
    order = TaskOrder(TASKS, CONFIG.seed)
    local = [task.task_id for _ in range(6) for task in order.take(4)]
    assert ids(StepsToCome.of(CONFIG, TASKS)) == local
    assert all(local.count(task.task_id) == 3 for task in TASKS)


def test_each_step_has_its_own_tasks_once(tmp_path: Path) -> None:
    order = Job("verl", CONFIG, None, tmp_path, StepsToCome.of(CONFIG, TASKS), TASKS[:2], tmp_path).work_order()
    assert len(order.training) == 24
    assert {group.first_repeat for group in order.training} == {0}
    assert [group.task["task_id"] for group in order.validation] == ["0", "1"]
    assert order.measured_steps == [0, 6]
    assert WorkOrder.model_validate(orjson.loads(orjson.dumps(order.model_dump(mode="json")))) == order


def saved_at(step: int, folder: Path, resumed: EngineResume | None = None) -> EngineResume:
    """A run's checkpoint of a step, as its next process reads it."""
    theirs = folder / "checkpoints" / "verl" / f"global_step_{step}"
    model = theirs / "actor" / "huggingface"
    model.mkdir(parents=True)
    save_file({"weight": torch.full((3,), float(step))}, model / "model.safetensors")
    (model / "config.json").write_text("{}")
    checkpoints = CheckpointStore(folder / "checkpoints")
    steps = StepsToCome.of(CONFIG, TASKS, None if resumed is None else resumed.point)
    job = Job("verl", CONFIG, None, folder, steps, [], theirs.parent, resumed)
    point = ResumePoint(step, 1.5, job.order_after(step))
    with (
        EpisodeStore(folder / f"{step}" / "episodes.sqlite") as episodes,
        MetricsLog(folder / f"{step}" / "metrics.jsonl") as metrics,
    ):
        ledger = StepLedger(
            CONFIG, episodes=episodes, metrics=metrics, checkpoints=checkpoints, n_validation_tasks=0, resumed=point
        )
        job.save_checkpoint(ledger, str(theirs), dtype="bfloat16", moved=False)
    newest = checkpoints.latest()
    assert newest is not None
    return EngineResume.read(newest, "verl")


@pytest.mark.parametrize("per_step", [4, 2])
def test_a_run_goes_on_with_the_tasks_that_follow_however_many_a_step_has(tmp_path: Path, per_step: int) -> None:
    point = saved_at(2, tmp_path).point
    trainer = CONFIG.trainer.model_copy(update={"tasks_per_step": per_step})
    config = CONFIG.model_copy(update={"trainer": trainer})
    assert (point.step, point.trained_s) == (2, 1.5)
    assert ids(StepsToCome.of(config, TASKS, point)) == ids(StepsToCome.of(CONFIG, TASKS))[8:][: 4 * per_step]


def test_a_run_that_is_done_has_tasks_for_an_engine_that_only_measures(tmp_path: Path) -> None:
    assert len(StepsToCome.of(CONFIG, TASKS, saved_at(6, tmp_path).point).tasks) == 1


def test_a_run_does_not_go_on_with_other_tasks(tmp_path: Path) -> None:
    point = saved_at(2, tmp_path).point
    with pytest.raises(TaskReaderError, match="changed since the checkpoint was written"):
        StepsToCome.of(CONFIG, TASKS[1:], point)


def test_a_run_whose_engines_own_checkpoint_is_gone_does_not_go_on(tmp_path: Path) -> None:
    shutil.rmtree(saved_at(2, tmp_path).folder)
    newest = CheckpointStore(tmp_path / "checkpoints").latest()
    assert newest is not None
    with pytest.raises(TrainerError, match=r"verl.s own checkpoint .*global_step_2 is gone"):
        EngineResume.read(newest, "verl")


def test_an_engines_own_checkpoints_do_not_pile_up(tmp_path: Path) -> None:
    first, second = saved_at(2, tmp_path), saved_at(4, tmp_path)
    job = Job(
        "verl", CONFIG, None, tmp_path, StepsToCome.of(CONFIG, TASKS, second.point), [], second.folder.parent, second
    )
    job.remove_other_checkpoints()
    assert not first.folder.exists()
    assert second.folder.is_dir()
    third = saved_at(6, tmp_path, second)
    assert not second.folder.exists()
    assert third.folder.is_dir()
