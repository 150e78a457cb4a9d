"""Tasks generated at the first reading and cached: from documents, from examples, or from both."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from astune.config.cache import cache_dir
from astune.config.output_file import write_whole
from astune.config.reader import FileConfig, JsonlReaderConfig, TaskReaderConfig
from astune.config.schema import AstuneConfig
from astune.data_generator import Example, Material, make_tasks, read_material, write_tasks
from astune.env_service.base import last_question
from astune.env_service.built_in import NO_ENV
from astune.env_service.handle import ENV_URL
from astune.helper_model import HelperModel
from astune.schema import Task, TaskReaderError, content_id, run_alone
from astune.scoring.math_answer import after_marker
from astune.task_reader.jsonl import TaskReaderJsonl
from astune.task_reader.reader import TaskReaderBase

SUCCESS_RATE = "success_rate"
"""The metadata field with the part of episodes in which the experiment's model succeeded."""
_TRAINING, _HELD_OUT = "training.jsonl", "held_out.jsonl"


class TaskReaderDataGeneration(TaskReaderBase):
    """Tasks that `helper_model` makes as `task_reader.data_generation` says; with examples, those as well.

    They are made once: what was made from the same material, with the same settings and the same helper model, lies in
    the user's cache.
    """

    def __init__(self, experiment: AstuneConfig, *, base_dir: Path | None = None) -> None:
        super().__init__(experiment.task_reader, base_dir=base_dir)
        self._experiment = experiment
        self._folder: Path | None = None

    def training_tasks(self) -> list[Task]:
        """The tasks; those that were measured with the experiment's model have `metadata.success_rate`."""
        tasks = self._read(_TRAINING)
        path = self._rates_path()
        rates = orjson.loads(path.read_bytes()) if path.exists() else {}
        return [
            replace(task, metadata=task.metadata | {SUCCESS_RATE: rates[task.task_id]})
            if task.task_id in rates
            else task
            for task in tasks
        ]

    def validation_tasks(self) -> list[Task]:
        return self._read(_HELD_OUT)

    def keep_success_rates(self, measured: Sequence[Task]) -> None:
        """Keep how often the experiment's model succeeds in each task, beside the tasks."""
        rates = {task.task_id: task.metadata[SUCCESS_RATE] for task in measured}
        write_whole(self._rates_path(), orjson.dumps(rates).decode())

    def _rates_path(self) -> Path:
        return self._made() / f"success_rates-{content_id({'model': self._experiment.model.path})}.json"

    def _read(self, name: str) -> list[Task]:
        path = self._made() / name
        return tasks_in(path) if path.stat().st_size else []

    def _made(self) -> Path:
        self._folder = self._folder or self._make()
        return self._folder

    def _make(self) -> Path:
        """The folder with the tasks, which are made if it is not there."""
        config = self.config.data_generation
        seeds = self.find(config.seeds, key="task_reader.data_generation.seeds") if config.seeds else None
        documents = [self._place(path) for path in config.documents]
        material = material_of(self._experiment, documents, seeds)
        folder = cache_dir() / "made_tasks" / self._name(material, seeds)
        if (folder / _TRAINING).is_file() and (folder / _HELD_OUT).is_file():
            self.tell(f"tasks made before, from {folder}")
            return folder
        model = HelperModel(self._experiment.helper_model)
        field = self._experiment.task_judge.reference_field
        making = make_tasks(config, material, model, self._experiment.sandbox, self._on_progress, field)
        made = run_alone(making, name="astune-data")
        originals = tasks_in(seeds) if seeds is not None and config.originals else []
        divided: dict[bool, list[Task]] = {True: list(made.held_out), False: list(made.training)}
        for task in originals:
            divided[task.task_id in material.held_out].append(task)
        write_tasks(folder / _HELD_OUT, divided[True])
        write_tasks(folder / _TRAINING, divided[False])
        return folder

    def _place(self, path: str) -> Path:
        there = [place for place in self.places(path) if place.exists()]
        if not there:
            raise TaskReaderError(
                f"task_reader.data_generation.documents: there is no file or folder {path}",
                hint="paths are relative to the working directory, then to the configuration's folder",
            )
        return there[0]

    def _name(self, material: Material, seeds: Path | None) -> str:
        """A name that says from what, how and by whom the tasks were made."""
        helper = self._experiment.helper_model
        prompts = sorted(helper.prompts.expanduser().glob("*.txt")) if helper.prompts is not None else []
        files = [*([seeds] if seeds is not None else []), *prompts]
        content: dict[str, Any] = {
            "passages": [hashlib.sha256(each.text.encode()).hexdigest() for each in material.passages],
            "files": [hashlib.sha256(path.read_bytes()).hexdigest() for path in files],
            "settings": self.config.data_generation.model_dump(),
            "reference_field": self._experiment.task_judge.reference_field,
            "helper_model": helper.model_dump(mode="json", include={"base_url", "model", "language", "prompts"}),
        }
        return content_id(content)

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        if stage == "tasks":
            self.tell(f"making tasks: {done} of {total}")


def token_counter(experiment: AstuneConfig) -> Any:
    """Return the token counter of the experiment's model."""
    from astune.engine.model_files import resolve_model
    from astune.engine.tokenizer import ModelTokenizer

    tokenizer = ModelTokenizer.load(resolve_model(experiment.model.path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def material_of(experiment: AstuneConfig, documents: Sequence[Path], seeds: Path | None) -> Material:
    """Read the material of tasks, as `task_reader.data_generation` describes it. Raises TaskReaderError if it cannot be
    read."""
    config = experiment.task_reader.data_generation
    count = token_counter(experiment)
    if seeds is not None and config.env_url:
        return read_material(config, count, documents, worlds=worlds_in(seeds, config.env_url))
    examples = examples_in(seeds, experiment.task_judge.reference_field) if seeds is not None else []
    return read_material(config, count, documents, examples)


def worlds_in(path: Path, env_url: str) -> list[Task]:
    """The tasks of a JSONL file as worlds to explore, at this address. Raises TaskReaderError if one has no
    environment."""
    tasks = tasks_in(path)
    for task in tasks:
        if task.env_type == NO_ENV:
            raise TaskReaderError(
                f"{path}: task {task.task_id} has no environment to explore",
                hint="set env_type, or leave --env out",
            )
    there = {} if env_url == "local" else {ENV_URL: env_url}
    return [replace(task, metadata=task.metadata | there) for task in tasks]


def tasks_in(path: Path, base_dir: Path | None = None) -> list[Task]:
    """The tasks of a JSONL file; files of environments are also looked for in `base_dir`.

    Raises:
        TaskReaderError: it cannot be read; names the line.
    """
    files = JsonlReaderConfig(training=FileConfig(file_path=str(path.resolve())))
    return TaskReaderJsonl(TaskReaderConfig(jsonl=files), base_dir=base_dir).read().training


def examples_in(path: Path, reference_field: str) -> list[Example]:
    """The tasks of a JSONL file as examples to vary. Raises TaskReaderError if one has no reference answer."""
    return [_example(task, reference_field, path) for task in tasks_in(path)]


def _example(task: Task, reference_field: str, path: Path) -> Example:
    reference = task.metadata.get(reference_field)
    if reference is None or not str(reference).strip():
        raise TaskReaderError(
            f"{path}: the example {task.task_id} has no metadata.{reference_field}",
            hint="an example needs its right answer: write it there, or set task_judge.reference_field",
        )
    question = task.main_query or last_question(task.init_messages)
    return Example(task.task_id, question, after_marker(str(reference)).strip(), task.env_type)
