"""Tasks that an environment lists, in this process; tests/env_service and tests/rollout read them from a service."""

from __future__ import annotations

from typing import Any

import pytest

from astune import Environment
from astune.config.schema import TaskReaderConfig
from astune.schema import ConfigError, TaskReaderError
from astune.task_reader import TaskReaderBase
from astune.task_reader.task_reader_base import TaskReaderEnvService, open_task_reader


class Lists(Environment):
    """Lists ids, and is asked for nothing else."""

    def get_init_state(self): ...

    def step(self, action): ...

    def evaluate(self, sparse: bool = True) -> float: ...

    @classmethod
    def get_query_list(cls, split: str, params: dict[str, Any]) -> list[str]:
        return {"train": ["b", "a"], "dev": ["c"], "both": ["a"], "twice": ["a", "a"]}.get(split, [])


def reader(**env_service: Any) -> TaskReaderBase:
    own = f"{__file__}->Lists"
    return open_task_reader(
        TaskReaderConfig.model_validate({"type": "env_service", "env_service": {"env_type": own} | env_service})
    )


def test_an_id_becomes_a_task_in_the_order_of_the_environment():
    opened = reader(validation_split="dev")
    assert isinstance(opened, TaskReaderEnvService)
    splits = opened.read()
    assert [task.task_id for task in splits.training] == ["b", "a"]
    assert [task.task_id for task in splits.validation] == ["c"]
    [first, _] = splits.training
    assert (first.main_query, first.env_type, first.metadata) == ("b", f"{__file__}->Lists", {})


def test_without_a_held_out_split_nothing_is_held_out():
    assert reader().read().validation == []


def test_the_calculator_brings_tasks_that_do_not_meet():
    splits = reader(env_type="calculator", validation_split="validation").read()
    assert (len(splits.training), len(splits.validation)) == (351, 39)


@pytest.mark.parametrize(
    ("env_service", "said"),
    [
        ({"env_type": ""}, "set task_reader.env_service.env_type"),
        ({"env_type": "appworld"}, "APPWORLD_PATH is not set; .*env_url"),
        ({"env_type": "frozenlake"}, "FrozenLake has no tasks of its own"),
        ({"env_type": "calculator", "training_split": "test1"}, "no split 'test1'; use train to train"),
        ({"training_split": "nothing"}, "has no task in split 'nothing'"),
        ({"training_split": "twice"}, "'a' is there twice"),
        ({"validation_split": "both"}, "'a' is also a training task"),
        ({"env_url": "localhost:8080"}, "write it with http://"),
    ],
)
def test_a_mistake_is_named_with_its_fix(env_service, said):
    with pytest.raises(TaskReaderError, match=said):
        reader(**env_service).read()


def test_a_class_that_is_no_environment_is_refused():
    with pytest.raises(ConfigError, match="is not a Environment"):
        reader(env_type="astune.schema->Task").read()
