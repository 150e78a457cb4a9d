"""Where tasks come from."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field

from astune.config.data import DataGenerationConfig
from astune.config.strict import StrictModel


class FileConfig(StrictModel):
    """One file of tasks."""

    file_path: str
    """A JSONL file, one task a line; relative to the working directory, then to the configuration's folder."""


class JsonlReaderConfig(StrictModel):
    """Tasks from JSONL files."""

    training: FileConfig | None = None
    """Tasks to train on."""
    validation: FileConfig | None = None
    """Tasks held out: never trained on, measured before training, every `test_freq` steps and at the end."""
    query_field: str = "main_query"
    """The field that holds the query in rows that are not in the task format (GSM8K: `question`)."""


class HuggingFaceReaderConfig(StrictModel):
    """Tasks from a data set in the hub's layout: on the hub, in a folder, or one file."""

    dataset_path: str = "openai/gsm8k"
    """A hub id, a folder, or one file: parquet, jsonl, json or csv. What is there as a path is read there; a hub id is
    read from where `scripts/download_dataset.py` put it, else fetched. GSM8K is the data set of the math agent, whose
    first experiments name none."""
    subset: str | None = None
    """The part of the data set that is read, called subset or configuration on the hub; null takes the only one, or
    the one called `default` or `main`."""
    training_split: str = "train"
    """The split to train on."""
    validation_split: str | None = None
    """The split that is held out and measured; null holds nothing out."""
    query_field: str | None = "question"
    """The field that becomes the query; the whole row becomes the metadata. Null takes the row as JSON, for workflows
    that read the metadata."""


class EnvServiceReaderConfig(StrictModel):
    """Tasks that an environment brings, hosted by a service or in this process."""

    env_type: str = ""
    """The environment's name: `appworld`, `calculator`, `reasoning_gym:leg_counting`, `path/file.py->Class`."""
    env_url: str | None = None
    """Address of the service that hosts it, as `http://127.0.0.1:8080`; null takes the environment in this process."""
    training_split: str = "train"
    """The split to train on, in the environment's own words."""
    validation_split: str | None = None
    """The split that is held out and only measured; null holds none out."""


READER_ALIASES = {"dataset_file": "jsonl", "huggingface_dat_repo": "huggingface"}
"""Names of readers that users know from earlier documents, and what they are called today."""


class FeedbackReaderConfig(StrictModel):
    """Tasks from what users asked and thought of the answers."""

    path: str = "feedback.sqlite3"
    """The store of feedback, as `astune serve` and `astune feedback import` write it."""
    min_rating: float = 0.5
    """Answers with this rating or a better one are references; corrected answers always are."""
    held_out: float = Field(default=0.2, ge=0, lt=1)
    """The part of the sessions whose tasks are held out."""
    only_pairs: bool = False
    """Train on those tasks alone that also have an answer that was rejected; `astune dpo` sets it."""


class TaskReaderConfig(StrictModel):
    """Where tasks come from."""

    type: str = "jsonl"
    """`jsonl` (alias `dataset_file`), `huggingface` (alias `huggingface_dat_repo`), `env_service`,
    `feedback_tracing`, `data_generation`, or a reader of your own: `module->Class` or `path/file.py->Class`."""
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
    """Keyword arguments for a reader of your own."""
    stratify_by: str | None = None
    """Metadata field whose values every step sees in the proportions of all training tasks; null leaves it to chance.
    Steps that happen to ask for one kind of answer only push a small model to and fro."""
