"""Crash-safe file operations: flushed to the device, and never partially visible under their final name."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from astune.schema import RunStoreError

FREE_SOME = "free some space on that disk, or set record_dir to a larger one, then use --resume"
FREE_THERE = "free some space on that disk"
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NEARLY_FULL_BYTES = 16 * 2**20


def fsync_folder(folder: Path) -> None:
    """Make the folder's entries durable: new names, renames and removals."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Make every file and folder below `folder` durable, itself included."""
    for parent, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        fsync_folder(Path(parent))


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` atomically: a reader, or a restart after a kill, sees the old bytes or the new ones."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with store_errors(f"writing {path}"):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync_folder(path.parent)


def remove_tree(folder: Path) -> None:
    """Remove a folder so that a kill never leaves a part of it under its own name."""
    doomed = folder.with_name(f".trash-{uuid.uuid4().hex[:8]}")
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def copy_folder(source: Path, to: Path, *, without: str = "") -> None:
    """Copy a folder into another, which may exist. Raises RunStoreError at the first file that cannot be copied.

    Args:
        without: pattern of the names of files that are left out.
    """

    def stop(error: OSError) -> None:
        raise error

    with store_errors(f"copying {source} to {to}", if_full=FREE_THERE):
        for folder, _, names in os.walk(source, onerror=stop, followlinks=True):
            target = to / os.path.relpath(folder, source)
            target.mkdir(parents=True, exist_ok=True)
            for name in names:
                file = Path(folder, name)
                if not fnmatch(name, without):
                    with store_errors(f"copying {file} to {target / name}", if_full=FREE_THERE):
                        shutil.copy2(file, target / name)


def n_bytes(folder: Path) -> int:
    """Return the size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def is_disk_full(cause: BaseException, near: Path) -> bool:
    """Return whether `cause` comes from a full disk; libraries hide the error number, so the disk is checked too."""
    if isinstance(cause, OSError) and cause.errno is not None:
        return cause.errno in _NO_SPACE
    try:
        return shutil.disk_usage(near).free < NEARLY_FULL_BYTES
    except OSError:
        return False


@contextmanager
def store_errors(what: str, *, near: Path | None = None, if_full: str = FREE_SOME) -> Iterator[None]:
    """Turn errors of the operating system into a RunStoreError that says what was being done.

    Args:
        if_full: hint for a full disk.
    """
    try:
        yield
    except OSError as cause:
        full = cause.errno in _NO_SPACE
        reason = "the disk is full" if full else (cause.strerror or str(cause))
        where = f" ({near})" if near else ""
        raise RunStoreError(
            f"{what}: {reason}{where}",
            hint=if_full if full else "check that the folder exists and that you may write there",
        ) from cause


def require_still_there(path: Path, opened: os.stat_result) -> None:
    """
    Raises:
        RunStoreError: `path` is no longer the file that was opened, so what is written would be lost.
    """
    try:
        same = os.path.samestat(path.stat(), opened)
    except OSError:
        same = False
    if not same:
        raise RunStoreError(
            f"{path} was removed or replaced while the run wrote it",
            hint="put it back, or accept its loss, then continue with --resume",
        )


@dataclass(frozen=True, slots=True)
class Stamp:
    """File state that tells whether a file has changed since it was read."""

    inode: int = -1
    size: int = -1
    mtime_ns: int = -1

    @classmethod
    def of(cls, path: Path) -> Stamp:
        try:
            status = path.stat()
        except OSError:
            return cls()
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)
