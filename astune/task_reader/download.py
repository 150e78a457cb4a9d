"""Resumable download of a data set's files: a file has its name only when it is whole.

Until then its bytes are in `NAME.part` beside it, and the next attempt resumes after them (`Range`). A file is whole
when its size and, where the hub tells one, its checksum are right; one that is, is not fetched again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from astune.schema import TaskReaderError
from astune.task_reader.hub import Hub, RemoteFile, reason_of

PATIENCE = 3
"""Connections in a row that may break without a single new byte."""
_PAUSE_S = 0.5
_PART = ".part"
_LOCK = ".download.lock"
_CHUNK = 1 << 20


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made where it is missing, against other processes that download into it. Raises
    TaskReaderError if one does, or the folder cannot be written."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TaskReaderError(
                f"another process downloads into {folder}", hint="wait until it has ended, then start this again"
            ) from None
        yield


def is_there(file: RemoteFile, folder: Path) -> bool:
    """Return whether the file is there, whole and with the right checksum."""
    target = folder / file.name
    return target.is_file() and _is_whole(target, file)


def bytes_begun(file: RemoteFile, folder: Path) -> int:
    """Bytes of the file that an interrupted download has left."""
    part = _part_of(folder / file.name)
    return min(part.stat().st_size, file.size) if part.is_file() else 0


def fetch(file: RemoteFile, folder: Path, hub: Hub, on_bytes: Callable[[int], object]) -> Path:
    """Fetch what is missing of the file from the hub that named it; `on_bytes` receives the number of bytes there.

    Raises:
        TaskReaderError: the connection breaks again and again, the hub refuses, what came is not the file that the hub
            describes, or it cannot be written. What came is kept.
    """
    target = folder / file.name
    part = _part_of(target)
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        resumed = part.is_file() and part.stat().st_size > 0
        _complete(part, file, hub, on_bytes)
        if resumed and not _is_whole(part, file):  # what was there before belonged to an older revision
            part.unlink()
            _complete(part, file, hub, on_bytes)
        if not _is_whole(part, file):
            part.unlink()
            raise TaskReaderError(
                f"{file.url} is not the file that the hub describes: its size or checksum differs",
                hint="start again; if it stays so, the mirror is broken: take another one",
            )
        part.replace(target)
    return target


def _complete(part: Path, file: RemoteFile, hub: Hub, on_bytes: Callable[[int], object]) -> None:
    """Append what is missing, over as many connections as it takes."""
    failures = 0
    part.touch()
    while (before := part.stat().st_size) < file.size:
        try:
            _append(part, file, hub, on_bytes)
            broken = "it ended early"
        except httpx.TransportError as cause:
            broken = reason_of(cause)
        after = part.stat().st_size
        failures = failures + 1 if after <= before else 0
        if after < file.size and failures == PATIENCE:
            raise TaskReaderError(
                f"fetching {file.url} broke off at {after:,} of {file.size:,} bytes: {broken}",
                hint="run the command again: the download resumes where it stopped",
            )
        if failures:
            time.sleep(_PAUSE_S * failures)


def _append(part: Path, file: RemoteFile, hub: Hub, on_bytes: Callable[[int], object]) -> None:
    """A connection's worth of the rest."""
    there = part.stat().st_size
    headers = {"Range": f"bytes={there}-"} if there else {}
    with hub.client.stream("GET", file.url, headers=headers) as answer:
        if answer.status_code in (401, 403):
            raise hub.forbidden(file.name, answer.status_code)
        if answer.is_error:
            raise TaskReaderError(
                f"{file.url} was refused with status {answer.status_code}", hint="start again later, or take a mirror"
            )
        with part.open("ab" if answer.status_code == httpx.codes.PARTIAL_CONTENT else "wb") as stream:
            for chunk in answer.iter_bytes():
                stream.write(chunk)
                on_bytes(stream.tell())


def _part_of(target: Path) -> Path:
    return target.with_name(target.name + _PART)


def _is_whole(path: Path, file: RemoteFile) -> bool:
    if path.stat().st_size != file.size:
        return False
    if file.sha256:
        return _digest(path, hashlib.sha256()) == file.sha256
    if file.git_sha1:
        return _digest(path, hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)) == file.git_sha1
    return True


def _digest(path: Path, digest: hashlib._Hash) -> str:
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise TaskReaderError(
            f"{path} cannot be written: {cause.strerror or cause}",
            hint="check the folder, its permissions and the disk",
        ) from cause
