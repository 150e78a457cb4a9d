"""The endless order of training tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.schema import Task, TaskReaderError
from astune.task_reader import TaskOrder


def tasks(n: int) -> list[Task]:
    return [Task(task_id=f"t{i}", main_query=f"q{i}") for i in range(n)]


def ids(order: TaskOrder, n: int) -> list[str]:
    return [order.take(1)[0].task_id for _ in range(n)]


@given(n=st.integers(1, 60), seed=st.integers(0, 5))
def test_every_epoch_holds_every_task_once(n, seed):
    order = TaskOrder(tasks(n), seed)
    for _ in range(3):
        assert sorted(ids(order, n)) == sorted(task.task_id for task in tasks(n))


@given(n=st.integers(2, 60), sizes=st.lists(st.integers(1, 8), max_size=12), more=st.integers(0, 80))
def test_it_goes_on_where_its_state_was_taken(n, sizes, more):
    order = TaskOrder(tasks(n), seed=3)
    for size in sizes:
        order.take(min(size, n // 2))
    state = json.loads(json.dumps(order.state_dict()))
    resumed = TaskOrder(tasks(n), seed=3)
    resumed.load_state_dict(state)
    assert ids(resumed, more) == ids(order, more)


@given(n=st.integers(8, 60), steps=st.integers(1, 20), data=st.data())
def test_a_step_across_two_epochs_holds_no_task_twice(n, steps, data):
    size = data.draw(st.integers(1, n - -(-n // 8) + 1))
    order = TaskOrder(tasks(n), seed=1)
    for _ in range(steps):
        taken = order.take(size)
        assert len({task.task_id for task in taken}) == size


def test_epochs_and_seeds_differ():
    order = TaskOrder(tasks(50), seed=0)
    first, second = ids(order, 50), ids(order, 50)
    assert first != second
    assert first != ids(TaskOrder(tasks(50), seed=1), 50)
    assert first == ids(TaskOrder(tasks(50), seed=0), 50)


def test_too_few_tasks_for_a_step_is_an_error():
    with pytest.raises(TaskReaderError, match=r"4 different tasks.*from 3; lower trainer\.tasks_per_step"):
        TaskOrder(tasks(3), seed=0).take(4)
    with pytest.raises(TaskReaderError, match="no task to train on"):
        TaskOrder([], seed=0)


def test_a_state_of_other_tasks_or_another_seed_is_refused():
    state = TaskOrder(tasks(5), seed=0).state_dict()
    for other in (TaskOrder(tasks(6), seed=0), TaskOrder(tasks(5), seed=1)):
        with pytest.raises(TaskReaderError, match="changed since the checkpoint"):
            other.load_state_dict(state)


def of_kinds(n: int, kinds: str) -> list[Task]:
    return [Task(task_id=f"t{i}", main_query=f"q{i}", metadata={"kind": kinds[i % len(kinds)]}) for i in range(n)]


@given(seed=st.integers(0, 20))
def test_stratified_steps_see_the_kinds_in_the_proportions_of_all_tasks(seed):
    order = TaskOrder(of_kinds(400, "aab"), seed, stratify_by="kind")
    epoch = [order.take(8) for _ in range(50)]
    for step in epoch:
        assert 1 <= sum(task.metadata["kind"] == "b" for task in step) <= 4
    assert len({task.task_id for step in epoch for task in step}) == 400
    assert epoch[0] != order.take(8)


def test_rare_kinds_are_spread_over_the_whole_epoch():
    tasks = [Task(task_id=f"t{i}", main_query="q", metadata={"kind": i if i < 100 else "common"}) for i in range(1000)]
    order = TaskOrder(tasks, seed=0, stratify_by="kind")
    rare = [sum(task.metadata["kind"] != "common" for task in order.take(100)) for _ in range(10)]
    assert sum(rare) == 100
    assert max(rare) <= 25


@given(n=st.integers(2, 60), taken=st.integers(0, 150))
def test_a_stratified_order_goes_on_where_its_state_was_taken_and_holds_every_task_once(n, taken):
    order, resumed = (TaskOrder(of_kinds(n, "aab"), seed=3, stratify_by="kind") for _ in range(2))
    ids(order, taken)
    resumed.load_state_dict(json.loads(json.dumps(order.state_dict())))
    assert ids(resumed, 2 * n) == ids(order, 2 * n)
    fresh = TaskOrder(of_kinds(n, "aab"), seed=3, stratify_by="kind")
    assert sorted(ids(fresh, n)) == sorted(f"t{i}" for i in range(n))


def test_tasks_without_the_field_to_stratify_by_are_refused():
    unlike = [*of_kinds(3, "a"), Task(task_id="odd", main_query="q", metadata={"level": 1, "answer": "4"})]
    with pytest.raises(
        TaskReaderError, match=r"stratify_by is kind, but the training task odd .*; it has answer, level"
    ):
        TaskOrder(unlike, seed=0, stratify_by="kind")


def test_another_stratification_is_another_order():
    tasks = of_kinds(30, "ab")
    with pytest.raises(TaskReaderError, match="changed since the checkpoint"):
        TaskOrder(tasks, seed=0, stratify_by="kind").load_state_dict(TaskOrder(tasks, seed=0).state_dict())


def measured(rates: list[object]) -> list[Task]:
    return [Task(f"t{i}", main_query=f"q{i}", metadata={"success_rate": rate}) for i, rate in enumerate(rates)]


@given(rates=st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_a_curriculum_goes_from_easy_to_hard_in_every_epoch_and_shuffles_within_an_eighth(rates):
    order = TaskOrder(measured(rates), seed=0, curriculum="success_rate")
    size = -(-len(rates) // 8)
    highest = sorted(rates, reverse=True)
    for _ in range(2):
        taken = [rates[int(name[1:])] for name in ids(order, len(rates))]
        for start in range(0, len(rates), size):
            assert sorted(taken[start : start + size], reverse=True) == highest[start : start + size]


@pytest.mark.parametrize("rate", [None, "high", True, float("nan")])
def test_a_curriculum_needs_a_number_in_each_task(rate):
    with pytest.raises(TaskReaderError, match="training task t1 has no number there; measure the tasks first"):
        TaskOrder(measured([0.5, rate]), seed=0, curriculum="success_rate")
