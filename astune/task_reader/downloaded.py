"""The folders that data sets were downloaded to: one folder each, found by the hub id from then on.

    DATA_PATH/openai/gsm8k/main/train-00000-of-00001.parquet

A note in the user's cache says where the newest complete download of a data set is. A folder that is gone is no
download, and then its note means nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from astune.config.cache import cache_dir
from astune.schema import TaskReaderError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""`owner/name`, in which no part leads to another folder."""


def folder_of(dataset: str, root: Path) -> Path:
    """The folder below `root` that belongs to this data set alone. Raises TaskReaderError if `dataset` is no hub id."""
    if HUB_ID.fullmatch(dataset) is None:
        raise TaskReaderError(f"{dataset!r} is no hub id", hint="a hub id has the form owner/name, as in openai/gsm8k")
    return root / dataset


def note_download(dataset: str, folder: Path) -> None:
    """Let the hub id be read from `folder`, which holds all of its files."""
    note = _note_of(dataset)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(str(folder.resolve()), encoding="utf-8")
    except OSError as cause:
        raise TaskReaderError(
            f"{note} cannot be written: {cause.strerror or cause}",
            hint=f"the download is complete; set task_reader.huggingface.dataset_path to {folder}",
        ) from cause


def downloaded_folder(dataset: str) -> Path | None:
    """The folder that the data set was downloaded to; None where it never was, or is no longer there."""
    note = _note_of(dataset)
    folder = Path(note.read_text(encoding="utf-8")) if note.is_file() else None
    return folder if folder is not None and folder.is_dir() else None


def folder_name(dataset: str) -> str:
    """A hub id as one folder's name."""
    return dataset.replace("/", "--")


def _note_of(dataset: str) -> Path:
    return cache_dir() / "downloaded" / folder_name(dataset)
