"""Namespaces: separate file tree, processes, network and memory segments, if the kernel allows them.

The tree has the interpreter and the system's libraries, read-only, a few devices, and nothing else: no home folders,
no /proc, no /sys. It is built once; each call adds a scratch folder that only it sees.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable

from . import family, libc
from .confine import DEVICES, SCRATCH, become_nobody
from .filling import MOST_FILES

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442
_RECURSIVE, _HERE = 0x8000, -100
_READ_ONLY_NO_SETUID = struct.pack("QQQQ", 1 | 2, 0, 0, 0)


class Walls:
    """Around the process that calls are forked from, and so around each call."""

    def __init__(self) -> None:
        """Unshare in the parent process: its next fork is the first process of a new PID namespace."""
        self.proc = family.open_proc()
        """The machine's /proc, which does not exist behind walls; closed before any code runs."""
        self._processes = -1
        user, group = os.geteuid(), os.getegid()
        if user == 0:
            libc.unshare(libc.CLONE_NEWPID)
            return
        libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWPID)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)

    def close_in(self, base: str, readable: Iterable[str], *, furnish: Callable[[str], None] = lambda _: None) -> None:
        """Replace the machine's files by a tree at `base`, which must be an empty folder; `furnish` adds to it before
        it becomes read-only."""
        self._processes = os.open("/proc/self/ns/pid", os.O_RDONLY)
        libc.unshare(libc.CLONE_NEWNS | libc.CLONE_NEWNET | libc.CLONE_NEWIPC | libc.CLONE_NEWUTS)
        libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
        libc.mount("tmpfs", base, "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "mode=0755,size=1m")
        for path in (*readable, *DEVICES):
            _show(path, base)
        os.mkdir(base + SCRATCH)
        if not os.path.lexists(f"{base}/tmp"):  # an interpreter may live there
            os.symlink(SCRATCH, f"{base}/tmp")
        furnish(base)
        os.chdir(base)
        libc.syscall("pivot_root", _PIVOT_ROOT[os.uname().machine], b".", b".")
        libc.unmount(".", libc.MNT_DETACH)
        os.chdir("/")
        size = len(_READ_ONLY_NO_SETUID)
        libc.syscall("mount_setattr", _MOUNT_SETATTR, _HERE, b"/", _RECURSIVE, _READ_ONLY_NO_SETUID, size)
        if os.geteuid() == 0:
            become_nobody(keep_administration=True)

    def fork(self) -> int:
        """os.fork() into a new PID namespace: the child is its first process, with which all others in it end."""
        libc.unshare(libc.CLONE_NEWPID)
        child = -1
        try:
            child = os.fork()
        finally:
            if child != 0:
                libc.setns(self._processes, libc.CLONE_NEWPID)
        return child

    @staticmethod
    def add_scratch(megabytes: int) -> None:
        """Mount a scratch folder that only this process and its children can see, and that ends with them."""
        libc.unshare(libc.CLONE_NEWNS)
        flags = libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC
        libc.mount("tmpfs", SCRATCH, "tmpfs", flags, f"mode=0700,size={megabytes}m,nr_inodes={MOST_FILES}")


def _show(path: str, base: str) -> None:
    """Bind-mount a path of the machine below `base`; a missing one is skipped."""
    place = base + path
    if not os.path.exists(path) or os.path.lexists(place):
        return
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.islink(path) and path.count("/") == 1:  # /lib -> usr/lib
        os.symlink(os.readlink(path), place)
        return
    if os.path.isdir(path):
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
    libc.mount(path, place, flags=libc.MS_BIND | libc.MS_REC)
