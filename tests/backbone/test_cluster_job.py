from __future__ import annotations

from pathlib import Path

from astune.backbone.cluster.job import Job, tasks_of_all_steps
from astune.config.schema import AstuneConfig
from astune.schema import Task
from astune.task_reader import TaskOrder

CONFIG = AstuneConfig.model_validate({"rollout": {"num_repeat": 3}, "trainer": {"tasks_per_step": 4, "total_steps": 6}})
TASKS = [Task(str(number), "?") for number in range(8)]


def test_tasks_come_as_the_local_trainer_takes_them_however_many_epochs() -> None:
    order = TaskOrder(TASKS, CONFIG.seed)
    local = [task.task_id for _ in range(6) for task in order.take(4)]
    assert [task.task_id for task in tasks_of_all_steps(CONFIG, TASKS)] == local
    assert all(local.count(task.task_id) == 3 for task in TASKS)


def test_each_step_is_told_its_own_tasks_once(tmp_path: Path) -> None:
    told = Job("verl", CONFIG, None, tmp_path, tasks_of_all_steps(CONFIG, TASKS), TASKS[:2], tmp_path).told()
    assert len(told["training"]) == 24
    assert {row["first_repeat"] for row in told["training"]} == {0}
    assert [row["task"]["task_id"] for row in told["validation"]] == ["0", "1"]
