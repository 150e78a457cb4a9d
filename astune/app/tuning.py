"""`astune.tune`: AgentScope's `agentscope.tuner.tune`, with ASTuner training.

Its arguments are AgentScope's own objects (1.0.12 to 1.0.21), or anything with their attributes: `agentscope.tuner` is
not imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Protocol

from astune.app.api import train
from astune.app.experiment import Experiment
from astune.app.run import Run
from astune.config.schema import TaskReaderConfig
from astune.schema import ConfigError
from astune.task_reader.two_datasets import TwoDatasets

_GRPO = "multi_step_grpo"
"""AgentScope's names for GRPO over all calls of an episode."""


class Dataset(Protocol):
    """`agentscope.tuner.DatasetConfig`."""

    path: str
    name: str | None
    split: str | None
    total_epochs: int
    total_steps: int | None


class TunedModel(Protocol):
    """`agentscope.tuner.TunerModelConfig`; fields that only a server needs are not read."""

    model_path: str
    max_model_len: int
    temperature: float
    top_p: float
    max_tokens: int


class TunedAlgorithm(Protocol):
    """`agentscope.tuner.AlgorithmConfig`."""

    algorithm_type: str
    learning_rate: float
    group_size: int
    batch_size: int
    save_interval_steps: int
    eval_interval_steps: int


def tune(
    *,
    workflow_func: Callable[..., Any],
    judge_func: Callable[..., Any] | None = None,
    train_dataset: Dataset | None = None,
    eval_dataset: Dataset | None = None,
    model: TunedModel | None = None,
    auxiliary_models: Mapping[str, Any] | None = None,
    algorithm: TunedAlgorithm | None = None,
    project_name: str | None = None,
    experiment_name: str | None = None,
    monitor_type: str | None = None,
    config_path: str | PathLike[str] | None = None,
    **overrides: Any,
) -> Run:
    """Train a workflow function as `agentscope.tuner.tune` does, with the same arguments.

    Args:
        workflow_func: `async def (task, model, ...)`, at the top level of a file or notebook.
        judge_func: `async def (task, response, ...)`; None if the workflow returns the reward.
        train_dataset: rows to train on; each is the `task` of an episode.
        eval_dataset: validation rows, which are measured and not trained on.
        model: the model that is trained.
        auxiliary_models: must be empty; for a second model the function creates its own client.
        algorithm: the algorithm, its group and batch size, learning rate and intervals.
        monitor_type: the tracker.
        config_path: an experiment's YAML file, which the other arguments override.
        overrides: values by key, as in `astune.train`; they win.

    Raises:
        ConfigError: an argument is not supported by ASTuner.
        AstuneError: the run could not start, or failed.
    """
    _require_supported(model, auxiliary_models)
    values: dict[str, Any] = {"rollout.workflow": workflow_func, "task_judge.judge_protocol": judge_func}
    values |= {"project_name": project_name, "experiment_name": experiment_name, "trackers": monitor_type}
    values |= _of_model(model) | _of_algorithm(algorithm) | _of_datasets(train_dataset, eval_dataset)
    given = {key: value for key, value in values.items() if value is not None}
    if train_dataset is not None and train_dataset.total_steps is None:
        flags = inspect.signature(train).parameters
        settings = given | {key: value for key, value in overrides.items() if key not in flags}
        batch_size = Experiment.of(config_path or {}, values=settings).config.trainer.tasks_per_step
        given["trainer.total_steps"] = _steps_of(train_dataset, batch_size)
    return train(config_path or {}, **(given | overrides))


def _of_model(model: TunedModel | None) -> dict[str, Any]:
    if model is None:
        return {}
    return {
        "model.path": model.model_path,
        "rollout.max_model_len": model.max_model_len,
        # AgentScope's default, 8192, may be more than a conversation's length.
        "rollout.max_response_length_in_one_turn": min(model.max_tokens, model.max_model_len - 1),
        "rollout.temperature": model.temperature,
        "rollout.top_p": model.top_p,
    }


def _of_algorithm(algorithm: TunedAlgorithm | None) -> dict[str, Any]:
    if algorithm is None:
        return {}
    return {
        "trainer.algorithm": "grpo" if algorithm.algorithm_type == _GRPO else algorithm.algorithm_type,
        "trainer.optim.lr": algorithm.learning_rate,
        "rollout.num_repeat": algorithm.group_size,
        "trainer.tasks_per_step": algorithm.batch_size,
        "trainer.save_freq": algorithm.save_interval_steps,
        "trainer.test_freq": algorithm.eval_interval_steps,
    }


def _of_datasets(training: Dataset | None, validation: Dataset | None) -> dict[str, Any]:
    if training is None:
        if validation is not None:
            raise ConfigError("eval_dataset is given without train_dataset", hint="give both, or name both in the file")
        return {}
    params = {"training": _named(training), "validation": None if validation is None else _named(validation)}
    values: dict[str, Any] = {"task_reader.type": TwoDatasets, "task_reader.params": params}
    return values | {"trainer.total_steps": training.total_steps}


def _steps_of(training: Dataset, batch_size: int) -> int:
    n_rows = len(TwoDatasets(TaskReaderConfig(), training=_named(training)).training_tasks())
    return max(1, training.total_epochs * n_rows // batch_size)


def _named(dataset: Dataset) -> dict[str, Any]:
    return {"dataset_path": dataset.path, "subset": dataset.name, "split": dataset.split}


def _require_supported(model: TunedModel | None, auxiliary_models: Mapping[str, Any] | None) -> None:
    if auxiliary_models:
        raise ConfigError(
            f"auxiliary_models: {', '.join(auxiliary_models)} would have to be served, which astune.tune does not do",
            hint="create a client of a served model in the function, or set helper_model",
        )
    if getattr(model, "tinker_config", None) is not None:
        raise ConfigError(
            "model.tinker_config requests training by Tinker's service, which astune does not support",
            hint='leave it out; LoRA is model={"lora": {"rank": 16}} among the overrides of astune.train',
        )
    if getattr(model, "enable_thinking", None) is not None:
        raise ConfigError(
            "model.enable_thinking: astune.tune cannot switch a template's thinking on or off", hint="leave it out"
        )
