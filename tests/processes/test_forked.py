"""A forked process, whose code nobody trusts: what it says, what it can reach, and how it ends."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator

import pytest

from astune.processes.forked import Ended, Forked, Raised
from astune.processes.link import LENGTH

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="its descriptors are looked for in /proc")


class Guest:
    """Code in the process that does as it likes."""

    def add(self, a: int, b: int) -> int:
        return a + b

    def fail(self) -> None:
        raise RuntimeError("no")

    def forge(self, body: str, times: int) -> int:
        """Say something over the process's own channel."""
        [channel] = [n for n in map(int, os.listdir("/proc/self/fd")) if is_socket(n)]
        os.write(channel, LENGTH.pack(times * len(body)) + times * body.encode())
        return 0

    def write_to_the_log(self) -> None:
        for stream in (1, 2):
            os.write(stream, b"the guest was here\n")


def is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:  # the one that the folder was listed with
        return False


@pytest.fixture
def forked() -> Iterator[Forked]:
    process = Forked(Guest(), name="the guest")
    yield process
    process.end()


def test_it_answers(forked):
    assert forked.ask("add", timeout_s=20, a=1, b=2) == 3
    with pytest.raises(Raised, match="the guest, fail: RuntimeError: no"):
        forked.ask("fail", timeout_s=20)


@pytest.mark.slow
@pytest.mark.parametrize(("body", "times"), [("[", 200_000), ("[]", 1), ("3", 1), ("}", 1), (r'"\xff"', 1)])
def test_what_is_no_answer_ends_it(forked, body, times):
    with pytest.raises(Ended, match="stopped answering"):
        forked.ask("forge", timeout_s=20, body=body, times=times)


def test_it_cannot_write_to_the_log(forked, capfd):
    forked.ask("write_to_the_log", timeout_s=20)
    assert capfd.readouterr() == ("", "")
