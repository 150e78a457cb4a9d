"""Landlock: restricts which files can be opened. Reference: landlock(7) and `linux/landlock.h`.

It checks opening, creating, renaming and removing. It does not check changes of a file's mode, owner or times, nor
queries such as stat(2): those are left to the mounts, or to the system call filter.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from . import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Every right of a version of the interface: a handled right is refused unless a rule grants it."""


def version() -> int:
    """The kernel's version of the interface. Raises OSError if the kernel has no Landlock, or it is not switched on."""
    return libc.syscall("Landlock", _CREATE_RULESET, None, 0, 1)


def restrict(
    readable: Iterable[str], writable: Iterable[str], listable: Iterable[str] = (), *, network: bool = False
) -> None:
    """Let this thread, and whatever it starts, open only these files and folders. Needs no_new_privs.

    Programs are run from `readable` only; of `listable` and its subfolders, only names can be read. TCP is
    refused, where the kernel can (Linux 6.7), unless `network`.
    """
    abi = version()
    rights = _RIGHTS[min(abi, 5)]
    refused, scoped = (3 if abi >= 4 and not network else 0), (3 if abi >= 6 else 0)
    attributes = struct.pack("QQQ", rights, refused, scoped)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = libc.syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path in readable:
            _grant(ruleset, path, rights & _READING)
        for path in listable:
            _grant(ruleset, path, rights & _READ_DIR)
        for path in writable:
            _grant(ruleset, path, rights & ~_EXECUTE)
        libc.syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _grant(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _ON_FILES
        rule = ctypes.create_string_buffer(struct.pack("<Qi", rights, place))
        libc.syscall("landlock_add_rule", _ADD_RULE, ruleset, 1, rule, 0)
    finally:
        os.close(place)
