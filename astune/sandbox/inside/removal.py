"""Removal of a folder that untrusted code has filled: of any depth, with names and modes of its choosing.

`shutil.rmtree` recurses once a level and raises RecursionError some 1,000 levels down; no path reaches the bottom of
3,000. Here the subfolders of each folder are moved up before it is removed, so that nothing is ever deep.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_all(folder: str | os.PathLike[str]) -> bool:
    """Remove a folder and its content; return whether it is gone. Raises nothing."""
    try:
        top = os.open(folder, _OPEN)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        while names := _names(top):
            removed = [_removed(name, top) for name in names]
            if not any(removed):
                return False
    finally:
        os.close(top)
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True


def _names(descriptor: int) -> list[str]:
    try:
        return os.listdir(descriptor)
    except OSError:
        return []


def _removed(name: str, top: int) -> bool:
    """Remove a file of the folder, or a folder whose subfolders are moved up; return whether that succeeded."""
    try:
        inside = _entered(name, top)
        if inside is None:
            os.unlink(name, dir_fd=top)
            return True
        try:
            for child in _names(inside):
                _move_up(child, inside, top)
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=top)
    except OSError:
        return False
    return True


def _move_up(child: str, inside: int, top: int) -> None:
    below = _entered(child, inside)
    if below is None:
        os.unlink(child, dir_fd=inside)
        return
    os.close(below)
    os.rename(child, uuid.uuid4().hex, src_dir_fd=inside, dst_dir_fd=top)


def _entered(name: str, parent: int) -> int | None:
    """Return a descriptor of a folder, made readable and writable; None for anything else."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        return None
    with contextlib.suppress(OSError):
        os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, _OPEN, dir_fd=parent)
