"""What is said of the end of a process."""

from __future__ import annotations

import signal

import pytest

from astune.processes.ending import how_it_ended


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (None, "ended"),
        (0, "ended with exit status 0"),
        (3, "ended with exit status 3"),
        (-signal.SIGKILL, "was ended by SIGKILL"),
        (-40, "was ended by signal 40"),
    ],
)
def test_an_end_is_told_by_status_or_signal_also_by_one_without_a_name(status, text):
    assert how_it_ended(status) == text
