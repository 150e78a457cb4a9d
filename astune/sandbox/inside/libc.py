"""System calls that Python's standard library lacks, with their failures as OSError."""

from __future__ import annotations

import ctypes
import os

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def syscall(what: str, number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call the kernel by number; `what` names the call in its failure."""
    return _checked(what, _libc.syscall(ctypes.c_long(number), *map(_wide, arguments)))


def prctl(option: int, *arguments: int | bytes) -> int:
    padded = [*arguments, 0, 0, 0, 0][:4]
    return _checked(f"prctl({option})", _libc.prctl(option, *map(_wide, padded)))


def unshare(flags: int) -> None:
    _checked(f"unshare({flags:#x})", _libc.unshare(flags))


def setns(descriptor: int, kind: int) -> None:
    _checked("setns", _libc.setns(descriptor, kind))


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _checked(f"mount on {target}", _libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]))


def unmount(target: str, flags: int = 0) -> None:
    _checked(f"umount of {target}", _libc.umount2(target.encode(), flags))


def _wide(argument: int | bytes | ctypes.Array[ctypes.c_char] | None) -> object:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _checked(what: str, result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
