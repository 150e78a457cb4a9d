"""The files of a data set, in a folder, one file, a download, on the hub, or in a cache of it. Downloads of
`scripts/download_dataset.py` are read in place, without asking the hub. Any other hub id is fetched into the user's
cache, file by file and only what is read. Where the hub cannot be reached, the cache counts: ours, then the one that
Hugging Face's own programs share.
"""

from __future__ import annotations

import contextlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from astune.config.cache import cache_dir
from astune.schema import TaskReaderError
from astune.task_reader.download import fetch, is_there, only_writer
from astune.task_reader.downloaded import HUB_ID, downloaded_folder, folder_name
from astune.task_reader.hub import HubUnreachable, HuggingFaceHub, RemoteFile, hugging_face_home
from astune.task_reader.layout import CARD, Layout
from astune.task_reader.rows import FORMATS

_log = logging.getLogger(__name__)

Tell = Callable[[str], object]


class DatasetFiles(ABC):
    """`layout` says which files hold what, and `fetch` brings them here."""

    title: str
    layout: Layout

    @abstractmethod
    def fetch(self, names: Sequence[str], tell: Tell) -> list[Path]:
        """The files on this machine, in the order of `names`."""


class LocalFiles(DatasetFiles):
    """A folder, or of a folder the files named."""

    def __init__(self, title: str, folder: Path, names: Sequence[str] | None = None) -> None:
        self.title = title
        self._folder = folder
        names = _names_below(folder) if names is None else names
        card = folder / CARD
        text = card.read_text(encoding="utf-8", errors="replace") if CARD in names else ""
        self.layout = Layout.of(title, names, text)

    def fetch(self, names: Sequence[str], tell: Tell) -> list[Path]:
        return [self._folder / name for name in names]


class HubFiles(DatasetFiles):
    """A data set on the hub, whose newest revision was listed a moment ago."""

    def __init__(self, title: str, hub: HuggingFaceHub, remote: Sequence[RemoteFile], folder: Path, tell: Tell) -> None:
        self.title = title
        self._hub = hub
        self._remote = {file.name: file for file in remote}
        self._folder = folder
        card = self.fetch([CARD], tell)[0].read_text(encoding="utf-8", errors="replace") if CARD in self._remote else ""
        self.layout = Layout.of(title, self._remote, card)

    def fetch(self, names: Sequence[str], tell: Tell) -> list[Path]:
        missing = [file for file in map(self._remote.__getitem__, names) if not is_there(file, self._folder)]
        if missing:
            with only_writer(self._folder):
                self._forget_what_is_gone()
                for file in missing:
                    fetch(file, self._folder, self._hub, self._telling(file, tell))
        return [self._folder / name for name in names]

    def _forget_what_is_gone(self) -> None:
        """Files of an older revision, which would count among the newer ones when the hub cannot be asked."""
        for name in _names_below(self._folder):
            if Path(name).suffix in FORMATS and name not in self._remote:
                (self._folder / name).unlink()

    def _telling(self, file: RemoteFile, tell: Tell) -> Callable[[int], object]:
        return lambda there: tell(f"fetching {self.title}: {file.name}, {there / 1e6:.1f} of {file.size / 1e6:.1f} MB")


def open_dataset(path: str, places: Sequence[Path], tell: Tell) -> DatasetFiles:
    """Find the data set that `task_reader.huggingface.dataset_path` names. Raises TaskReaderError if it is neither
    there as a path nor on the hub, or has no file that can be read.

    Args:
        path: as the configuration has it: a path or a hub id.
        places: where it would be as a path.
        tell: receives progress messages.
    """
    for place in places:
        if place.is_dir():
            return LocalFiles(path, place)
        if place.is_file() and place.suffix in FORMATS:
            return LocalFiles(path, place.parent, [place.name])
        if place.is_file():
            raise TaskReaderError(f"{place} is no {', '.join(FORMATS)} file", hint="convert it to one of them")
    looked = " nor ".join(map(str, places))
    if HUB_ID.fullmatch(path) is None:
        raise TaskReaderError(
            f"task_reader.huggingface.dataset_path: there is no folder or file {looked}, and {path!r} is no hub id",
            hint=_no_hub_id_hint(path),
        )
    folder = downloaded_folder(path)
    return _from_hub(path, looked, tell) if folder is None else LocalFiles(f"{path} (downloaded to {folder})", folder)


def _no_hub_id_hint(path: str) -> str:
    """Return a hint for a missing path; `DATA_PATH/openai/gsm8k` is where a download would put a data set."""
    root, _, name = path.rpartition("/")
    root, _, owner = root.rpartition("/")
    if root and HUB_ID.fullmatch(f"{owner}/{name}"):
        return f"download it: python scripts/download_dataset.py --target={owner}/{name} --path={root}"
    return "a hub id has the form owner/name, as in openai/gsm8k"


def _from_hub(dataset: str, looked: str, tell: Tell) -> DatasetFiles:
    kept = cache_dir() / "datasets" / folder_name(dataset)
    hub = HuggingFaceHub()
    tell(f"asking {hub.endpoint} for {dataset}")
    try:
        if _is_offline():
            raise hub.unreachable("HF_HUB_OFFLINE is set")
        return HubFiles(dataset, hub, hub.files(dataset), kept, tell)
    except HubUnreachable as offline:
        for folder in (kept, _hugging_face_snapshot(dataset)):
            with contextlib.suppress(TaskReaderError):  # there is nothing in it
                found = LocalFiles(f"{dataset} (offline, from {folder})", folder)
                _log.warning("%s; %s is read from %s", offline.message, dataset, folder)
                return found
        raise TaskReaderError(
            f"{dataset} is neither at {looked} nor in a cache, and {offline.message}",
            hint=f"where there is a network: python scripts/download_dataset.py --target={dataset} --path=DIR, then "
            f"set task_reader.huggingface.dataset_path to DIR/{dataset}; or name a mirror: {hub.setting}=https://...",
        ) from offline


def _names_below(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _is_offline() -> bool:
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    return any(os.environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in names)


def _hugging_face_snapshot(dataset: str) -> Path:
    """Return the newest revision of the data set in the cache of `hf download` and other programs."""
    caches = Path(os.environ.get("HF_HUB_CACHE") or hugging_face_home() / "hub").expanduser()
    repository = caches / f"datasets--{folder_name(dataset)}"
    main = repository / "refs" / "main"
    return repository / "snapshots" / (main.read_text().strip() if main.is_file() else "main")
