"""Settings of the task reader."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field

from astune.config.data import DataGenerationConfig
from astune.config.strict import StrictModel


class FileConfig(StrictModel):
    """A file of tasks."""

    file_path: str
    """A JSONL file, one task a line; relative to the working directory, then to the configuration's folder."""


class JsonlReaderConfig(StrictModel):
    """Tasks from JSONL files."""

    training: FileConfig | None = None
    """Tasks to train on."""
    validation: FileConfig | None = None
    """Validation tasks: never trained on, measured before training, every `test_freq` steps and at the end."""
    query_field: str = "main_query"
    """Field that holds the query in rows that are not in the task format (GSM8K: `question`)."""


class HuggingFaceReaderConfig(StrictModel):
    """Tasks from a data set in the hub's layout: on the hub, in a folder, or one file."""

    dataset_path: str = "openai/gsm8k"
    """A hub id, a folder, or one file: parquet, jsonl, json or csv. An existing path is read directly; a hub id is read
    from the folder of `scripts/download_dataset.py`, else downloaded. The default is the math agent's GSM8K, since its
    earliest configurations name none."""
    subset: str | None = None
    """Subset of the data set, called configuration on the hub; null uses the only one, or the one named `default` or
    `main`."""
    training_split: str = "train"
    """Training split."""
    validation_split: str | None = None
    """Validation split, measured and never trained on; null has no validation set."""
    query_field: str | None = "question"
    """Field that becomes the query; the whole row becomes the metadata. Null uses the row as JSON, for workflows that
    read the metadata."""


class EnvServiceReaderConfig(StrictModel):
    """Tasks of an environment, hosted by a service or in this process."""

    env_type: str = ""
    """The environment's name: `appworld`, `calculator`, `reasoning_gym:leg_counting`, `path/file.py->Class`."""
    env_url: str | None = None
    """URL of the service that hosts it, such as `http://127.0.0.1:8080`; null runs the environment in this process."""
    training_split: str = "train"
    """Training split, as the environment names it."""
    validation_split: str | None = None
    """Validation split, measured and never trained on; null has no validation set."""


READER_ALIASES = {"dataset_file": "jsonl", "huggingface_dat_repo": "huggingface"}
"""Reader names known from earlier documents, with their present names."""


class FeedbackReaderConfig(StrictModel):
    """Tasks from users' queries and their ratings of the answers."""

    path: str = "feedback.sqlite3"
    """Feedback store, as `astune serve` and `astune feedback import` write it."""
    min_rating: float = 0.5
    """Answers with at least this rating are used as references; corrected answers always are."""
    held_out: float = Field(default=0.2, ge=0, lt=1)
    """Fraction of the sessions whose tasks form the validation set."""
    only_pairs: bool = False
    """Use only tasks that also have a rejected answer; `astune dpo` sets it."""


class TaskReaderConfig(StrictModel):
    """Source of the tasks."""

    type: str = "jsonl"
    """`jsonl` (alias `dataset_file`), `huggingface` (alias `huggingface_dat_repo`), `env_service`, `feedback_tracing`,
    `data_generation`, or your own reader: `module->Class` or `path/file.py->Class`."""
    jsonl: JsonlReaderConfig = Field(
        default=JsonlReaderConfig(), validation_alias=AliasChoices("jsonl", "dataset_file")
    )
    huggingface: HuggingFaceReaderConfig = Field(
        default=HuggingFaceReaderConfig(), validation_alias=AliasChoices("huggingface", "huggingface_dat_repo")
    )
    env_service: EnvServiceReaderConfig = EnvServiceReaderConfig()
    feedback_tracing: FeedbackReaderConfig = FeedbackReaderConfig()
    data_generation: DataGenerationConfig = DataGenerationConfig()
    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for your own reader."""
    stratify_by: str | None = None
    """Metadata field by whose values each step is stratified like the whole training set; null samples at random. Steps
    dominated by one kind of answer push a small model back and forth."""
    curriculum: str | None = None
    """Metadata field by which each epoch is sorted from high to low, as `success_rate` of `astune data measure`; null
    shuffles. Sorted by success rate, an epoch goes from easy to hard."""
