"""Confinement of a process before it runs the code: memory, processes, capabilities, files, system calls.

Each step raises OSError if it fails, and then no code is run.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import struct

from . import landlock, libc, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SCRATCH = "/scratch"
"""The code's own folder, if there is a mount namespace: its working, home and temporary folder."""

DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Devices that are visible. Not /dev/zero: mapping it shared creates memory that no process is charged for."""
NOBODY = 65534
OPEN_FILES = 128
"""Each may hold a few hundred KiB of the kernel's memory, as sockets do."""
PROGRAM_OPEN_FILES = 512
PROGRAM_PROCESSES = 256
"""Processes and threads of an agent program: Node.js alone has a dozen."""
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAP_SYS_ADMIN = 21


def limit(timeout_s: float, memory_mb: int) -> None:
    """Bound each process. Files are as large as memory; CPU seconds only matter where the clock was not watched."""
    seconds = math.ceil(timeout_s) + 1
    _lower(resource.RLIMIT_AS, memory_mb << 20, memory_mb << 20)
    _lower(resource.RLIMIT_CPU, seconds, seconds + 5)
    _limit_files(memory_mb, OPEN_FILES)


def limit_program(memory_mb: int) -> None:
    """Bound each process of a program, whose time and memory are watched: runtimes reserve more addresses than they
    use."""
    _limit_files(memory_mb, PROGRAM_OPEN_FILES)
    limit_processes(PROGRAM_PROCESSES)


def _limit_files(memory_mb: int, open_files: int) -> None:
    for name, most in (
        ("RLIMIT_FSIZE", memory_mb << 20),
        ("RLIMIT_NOFILE", open_files),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_MSGQUEUE", 0),
    ):
        if hasattr(resource, name):  # not every system has each
            _lower(getattr(resource, name), most, most)


def die_first(proc: int) -> None:
    """Make the kernel kill this process, and its children, before any other when memory runs out; `proc` is a
    descriptor of /proc."""
    with contextlib.suppress(OSError):  # a kernel without it
        score = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(score, b"1000")
        finally:
            os.close(score)


def limit_processes(processes: int) -> None:
    """Limit the processes and threads of this process's user, which should be a separate user."""
    _lower(resource.RLIMIT_NPROC, processes, processes)


def become_nobody(*, keep_administration: bool) -> None:
    """Leave root's user, which no process limit binds, and all its capabilities but perhaps that of mounting."""
    if keep_administration:
        libc.prctl(libc.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    try:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError as cause:
        if cause.errno != errno.EINVAL:  # a container's root without other mapped users is not the machine's root
            raise
    _set_capabilities(1 << _CAP_SYS_ADMIN if keep_administration else 0)


def enter_own_user_namespace() -> None:
    """Be a user that no other process is, so that processes are counted for this one alone (Linux 5.14)."""
    libc.unshare(libc.CLONE_NEWUSER)


def give_up(
    readable: Sequence[str], scratch: str, *, walled: bool, threads: bool = False, network: bool = False
) -> None:
    """Drop capabilities, and restrict files and system calls, irrevocably.

    Args:
        walled: whether there are namespaces, which end processes and hide files. Without them no process may be
            started, and the kernel must support Landlock.
        threads: whether threads may be started if processes may not.
        network: whether sockets may be used, in a network namespace of its own.
    """
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    _set_capabilities(0)
    try:
        landlock.restrict([*readable, *DEVICES], [scratch, "/dev/null"], ["/"] if walled else [], network=network)
    except OSError as cause:
        if not walled or cause.errno not in (errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    seccomp.install(processes=walled, threads=threads, network=network)


def settle(scratch: str) -> None:
    """Live in the scratch folder."""
    os.chdir(scratch)
    os.environ.update(HOME=scratch, TMPDIR=scratch, PWD=scratch)


def _lower(kind: int, soft: int, hard: int) -> None:
    highest = resource.getrlimit(kind)[1]
    if highest != resource.RLIM_INFINITY:
        soft, hard = min(soft, highest), min(hard, highest)
    resource.setrlimit(kind, (soft, hard))


def _set_capabilities(wanted: int) -> None:
    low, high = wanted & 0xFFFFFFFF, wanted >> 32
    number = _CAPSET.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOTSUP, f"no sandbox for the processor {os.uname().machine}")
    header = struct.pack("Ii", 0x20080522, 0)
    libc.syscall("capset", number, header, struct.pack("6I", low, low, 0, high, high, 0))
