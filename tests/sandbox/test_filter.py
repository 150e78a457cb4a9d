"""The system call filter's table against the kernel's own headers, and the filter on both processors."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from astune.sandbox.inside import seccomp, syscalls

HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
GROUPS = ("ALWAYS", "PROCESSES", "ATTRIBUTES", "EXTENDED", "NETWORK", "SOCKET_OPTIONS", "LOCKS", "BY_ARGUMENT")
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x50000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_those_of_the_kernels_headers(machine):
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    written = {name: int(number) for name, number in re.findall(r"__NR(?:3264)?_(\w+) (\d+)", header.read_text())}
    if machine == "aarch64":
        written["newfstatat"] = written["fstatat"]
    known = {name: n for group in GROUPS for name, n in syscalls.numbers(getattr(syscalls, group), machine).items()}
    compared = {name: (number, written[name]) for name, number in known.items() if name in written}
    assert len(compared) > 150
    assert {name: pair for name, pair in compared.items() if pair[0] != pair[1]} == {}


def _decision(
    machine: str,
    walled: bool,
    number: int,
    *arguments: int,
    arch: int | None = None,
    threads: bool = False,
    network: bool = False,
) -> int:
    """What the filter answers, by a small interpreter of its instructions."""
    program = list(struct.iter_unpack("HBBI", seccomp.filter_program(machine, walled, threads, network)))
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", number, arch or ARCHITECTURES[machine], 0, *padded)
    at, value = 0, 0
    while True:
        operation, if_true, if_false, operand = program[at]
        at += 1
        if operation == 0x20:
            value = struct.unpack_from("<I", data, operand)[0]
        elif operation == 0x54:
            value &= operand
        elif operation == 0x05:
            at += operand
        elif operation == 0x15:
            at += if_true if value == operand else if_false
        elif operation == 0x35:
            at += if_true if value >= operand else if_false
        else:
            assert operation == 0x06
            return operand


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize("walled", [True, False])
def test_every_number_is_decided_as_its_group_says(machine, walled):
    fates = {
        "ALWAYS": ALLOW,
        "PROCESSES": ALLOW if walled else ERRNO | 1,
        "ATTRIBUTES": ALLOW if walled else ERRNO | 1,
        "EXTENDED": ERRNO | 95,
        "NETWORK": ERRNO | 1,
        "LOCKS": ERRNO | 0,
    }
    expected = {
        number: fate
        for group, fate in fates.items()
        for number in syscalls.numbers(getattr(syscalls, group), machine).values()
    }
    by_argument = set(syscalls.numbers(syscalls.BY_ARGUMENT, machine).values())
    for number in [*range(600), 0x40000000, 0x40000027, 0xFFFFFFFF]:
        if number not in by_argument:
            assert _decision(machine, walled, number) == expected.get(number, ERRNO | 38), number
    assert _decision(machine, walled, 0, arch=0x40000003) == KILL


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_are_decided_by_their_arguments(machine):
    numbers = syscalls.numbers(syscalls.BY_ARGUMENT, machine)

    def decided(name, *arguments, walled=True, threads=False):
        return _decision(machine, walled, numbers[name], *arguments, threads=threads)

    thread, process, in_new_user_namespace = 0x3D0F00, 0x1200011, 0x10000011
    assert [decided("clone", flags) for flags in (thread, process)] == [ALLOW, ALLOW]
    assert decided("clone", in_new_user_namespace) == ERRNO | 1
    assert [decided("clone", flags, walled=False) for flags in (thread, process)] == [ERRNO | 1] * 2
    with_threads = [decided("clone", flags, walled=False, threads=True) for flags in (thread, process)]
    assert with_threads == [ALLOW, ERRNO | 1]
    assert decided("clone3") == ERRNO | 38
    stream, datagram, close_on_exec = 1, 2, 0o2000000
    assert decided("socketpair", 1, stream | close_on_exec) == ALLOW
    assert decided("socketpair", 1, datagram) == decided("socketpair", 2, stream) == ERRNO | 1
    assert decided("ioctl", 3, 0x5421) == ALLOW
    assert decided("ioctl", 3, 0x5412) == ERRNO | 25
    assert decided("fcntl", 3, 2) == ALLOW
    assert decided("fcntl", 3, 8) == decided("fcntl", 3, 10) == ERRNO | 1
    assert [decided("fcntl", 3, lock) for lock in (6, 7, 37, 38)] == [ERRNO | 0] * 4
    shared, private, anonymous, huge = 1, 2, 0x20, 0x40000
    assert [decided("mmap", 0, 4096, 3, flags) for flags in (shared, private, private | anonymous)] == [ALLOW] * 3
    refused = (shared | anonymous, 3 | anonymous, private | anonymous | huge, shared | huge)
    assert [decided("mmap", 0, 4096, 3, flags) for flags in refused] == [ERRNO | 1] * 4
    assert decided("prctl", 15) == ALLOW
    assert decided("prctl", 1) == ERRNO | 22
    assert decided("prlimit64", 0) == ALLOW
    assert decided("prlimit64", 7) == ERRNO | 1


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_a_network_of_its_own_has_sockets_of_three_families_and_two_kinds(machine):
    network = syscalls.numbers(syscalls.NETWORK, machine) | syscalls.numbers(syscalls.SOCKET_OPTIONS, machine)

    def made(family, kind):
        return _decision(machine, True, network["socket"], family, kind, network=True)

    for name in set(network) - {"socket"}:
        assert _decision(machine, True, network[name], network=True) == ALLOW, name
    unix, ip4, netlink, ip6, packet, close_on_exec = 1, 2, 16, 10, 17, 0o2000000
    assert {made(family, kind | close_on_exec) for family in (unix, ip4, ip6) for kind in (1, 2)} == {ALLOW}
    assert {made(family, kind) for family in (unix, ip4, ip6) for kind in (3, 5)} == {ERRNO | 1}
    assert {made(family, 1) for family in (netlink, packet, 40)} == {ERRNO | 1}


def test_a_processor_without_a_filter_is_refused():
    with pytest.raises(OSError, match="no system call filter for riscv64: it is made for x86_64, aarch64"):
        seccomp.filter_program("riscv64", True)
