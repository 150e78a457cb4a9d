"""A seccomp filter: the list of system calls allowed inside; everything else is refused.

    load the architecture     another one: the process is killed
    load the number           a search through the sorted ranges of numbers
        allowed               the call is made
        decided by argument   its arguments are compared
        refused               it fails with the error that says so best
        anything else         it fails with ENOSYS, as on a kernel that does not have it

The program is assembled here, since libseccomp is not everywhere, and installed by prctl(2). Reference: seccomp(2),
and `linux/filter.h` for the instructions of classic BPF.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from . import libc, syscalls

Program = list[tuple[int, int, int, int]]
"""Instructions of classic BPF: operation, jump if true, jump if false, operand."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000
_LOAD, _AND, _JUMP, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
_NUMBER, _ARCH = 0, 4

_NAMESPACES = (
    libc.CLONE_NEWNS
    | libc.CLONE_NEWCGROUP
    | libc.CLONE_NEWUTS
    | libc.CLONE_NEWIPC
    | libc.CLONE_NEWUSER
    | libc.CLONE_NEWPID
    | libc.CLONE_NEWNET
)
_CLONE_THREAD = 0x00010000
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_DGRAM = 1, 2
_FIONBIO, _FIONREAD, _FIOCLEX, _FIONCLEX = 0x5421, 0x541B, 0x5451, 0x5450
_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA = 15, 16, 0x53564D41
# F_SETOWN delivers events by any signal: a way to signal processes that kill() may not.
_F_SETLK, _F_SETLKW, _F_OFD_SETLK, _F_OFD_SETLKW = 6, 7, 37, 38
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 1, 0x20, 0x40000
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY = 8, 10, 15, 1024, 1026


_assembled: dict[tuple[str, bool, bool, bool], bytes] = {}
"""Cache of the assembled filter, shared by forked processes."""


def assemble(*, processes: bool, threads: bool = False, network: bool = False) -> bytes:
    """Return this machine's filter, the same object every time."""
    asked = os.uname().machine, processes, threads, network
    if asked not in _assembled:
        _assembled[asked] = filter_program(*asked)
    return _assembled[asked]


def install(*, processes: bool, threads: bool = False, network: bool = False) -> None:
    """Filter this thread's system calls from now on, and those of its children. Requires no_new_privs.

    Args:
        processes: whether processes may be started and file attributes changed; False if only the filter would keep
            them from doing harm.
        threads: whether threads may be started if processes may not.
        network: whether sockets may be used, in a network namespace of its own.
    """
    program = assemble(processes=processes, threads=threads, network=network)
    code = ctypes.create_string_buffer(program, len(program))
    libc.prctl(libc.PR_SET_SECCOMP, 2, struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))


def filter_program(machine: str, processes: bool, threads: bool = False, network: bool = False) -> bytes:
    """The filter's instructions as the kernel reads them. Raises OSError if the processor is not known."""
    if machine not in _AUDIT_ARCH:
        raise OSError(errno.ENOTSUP, f"no system call filter for {machine}: it is made for {', '.join(_AUDIT_ARCH)}")
    decided = _decisions(machine, processes, threads, network)
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        _returning(_KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        *_search(_intervals(decided)),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _decisions(machine: str, processes: bool, threads: bool, network: bool) -> dict[int, Program]:
    """Return the decision on each known call, by its number."""
    allow, refuse, absent = [_returning(_ALLOW)], [_refusing(errno.EPERM)], [_refusing(errno.ENOSYS)]
    groups = {
        syscalls.ALWAYS: allow,
        syscalls.PROCESSES: allow if processes else refuse,
        syscalls.ATTRIBUTES: allow if processes else refuse,
        syscalls.EXTENDED: [_refusing(errno.ENOTSUP)],
        syscalls.NETWORK: allow if network else refuse,
        syscalls.SOCKET_OPTIONS: allow if network else absent,
        syscalls.LOCKS: [_refusing(0)],
    }
    decided = {number: what for group, what in groups.items() for number in syscalls.numbers(group, machine).values()}
    of_threads = _with_bit(0, _CLONE_THREAD) if threads else refuse
    by_argument = {
        "clone": _without_bits(0, _NAMESPACES) if processes else of_threads,
        "clone3": [_refusing(errno.ENOSYS)],  # its flags cannot be seen; the C library then calls clone
        "socketpair": [
            *_only(0, [_AF_UNIX], errno.EPERM, last=False),
            *_only(1, [_SOCK_STREAM], errno.EPERM, mask=0xF),  # the other kinds can be sent anywhere
        ],
        "ioctl": _only(1, [_FIONBIO, _FIONREAD, _FIOCLEX, _FIONCLEX], errno.ENOTTY),
        "fcntl": [
            *_none_of(1, [_F_SETLK, _F_SETLKW, _F_OFD_SETLK, _F_OFD_SETLKW], 0, last=False),
            *_none_of(1, [_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY], errno.EPERM),
        ],
        "mmap": [  # memory that no process is charged for
            *_without_bits(3, _MAP_HUGETLB, last=False),
            *_low_half(3, _MAP_SHARED | _MAP_ANONYMOUS),
            (_EQUAL, 0, 1, _MAP_SHARED | _MAP_ANONYMOUS),
            _refusing(errno.EPERM),
            _returning(_ALLOW),
        ],
        "prctl": _only(0, [_PR_SET_NAME, _PR_GET_NAME, _PR_SET_VMA], errno.EINVAL),
        "prlimit64": _only(0, [0], errno.EPERM),
    }
    numbers = syscalls.numbers(syscalls.BY_ARGUMENT, machine)
    if network:
        numbers |= syscalls.numbers(syscalls.NETWORK, machine)
        by_argument["socket"] = [
            *_only(0, [_AF_UNIX, _AF_INET, _AF_INET6], errno.EPERM, last=False),
            *_only(1, [_SOCK_STREAM, _SOCK_DGRAM], errno.EPERM, mask=0xF),
        ]
    return decided | {numbers[name]: what for name, what in by_argument.items()}


def _intervals(decided: dict[int, Program]) -> list[tuple[int, Program]]:
    """(first number, what becomes of it and those up to the next first number), neighbours of one fate merged."""
    absent = [_refusing(errno.ENOSYS)]
    found: list[tuple[int, Program]] = [(0, decided.get(0, absent))]
    for number in range(1, max(decided) + 2):
        what = decided.get(number, absent)
        if what != found[-1][1]:
            found.append((number, what))
    return found  # the last one covers all higher numbers, including the x32 interface's


def _search(intervals: list[tuple[int, Program]]) -> Program:
    """Find the number's interval by halving."""
    if len(intervals) == 1:
        return intervals[0][1]
    middle = len(intervals) // 2
    below, above = _search(intervals[:middle]), _search(intervals[middle:])
    if len(below) < 256:
        return [(_AT_LEAST, len(below), 0, intervals[middle][0]), *below, *above]
    return [(_AT_LEAST, 0, 1, intervals[middle][0]), (_JUMP, 0, 0, len(below)), *below, *above]


def _only(argument: int, values: list[int], refusal: int, *, mask: int = 0xFFFFFFFF, last: bool = True) -> Program:
    """Allow the call, or continue with the next check, if the argument's low half is one of `values`."""
    program: Program = [*_low_half(argument, mask)]
    for index, value in enumerate(values):
        program.append((_EQUAL, len(values) - index, 0, value))
    program.append(_refusing(refusal))
    return [*program, _returning(_ALLOW)] if last else program


def _none_of(argument: int, values: list[int], refusal: int, *, last: bool = True) -> Program:
    """Refuse the call if the argument's low half is one of `values`; refusal 0 reports success."""
    program: Program = [*_low_half(argument)]
    for index, value in enumerate(values):
        program.append((_EQUAL, len(values) - index, 0, value))
    skip: Program = [(_JUMP, 0, 0, 1), _refusing(refusal)]
    return [*program, _returning(_ALLOW), _refusing(refusal)] if last else [*program, *skip]


def _without_bits(argument: int, bits: int, *, last: bool = True) -> Program:
    program: Program = [*_low_half(argument, bits), (_EQUAL, 1, 0, 0), _refusing(errno.EPERM)]
    return [*program, _returning(_ALLOW)] if last else program


def _with_bit(argument: int, bit: int) -> Program:
    return [*_low_half(argument, bit), (_EQUAL, 1, 0, bit), _refusing(errno.EPERM), _returning(_ALLOW)]


def _low_half(argument: int, mask: int = 0xFFFFFFFF) -> Program:
    """Load the low 32 bits, all that the kernel looks at in these arguments; both processors store them first."""
    load = (_LOAD, 0, 0, 16 + 8 * argument)
    return [load] if mask == 0xFFFFFFFF else [load, (_AND, 0, 0, mask)]


def _returning(action: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, action)


def _refusing(number: int) -> tuple[int, int, int, int]:
    return _returning(_ERRNO | number)
