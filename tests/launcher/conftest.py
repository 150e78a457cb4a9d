"""What the launcher's tests share: a marker for their processes, a free port, a record of processes of their own."""

from __future__ import annotations

import pytest
from launcher_helpers import marker, registry  # noqa: F401
from ports import free_port


@pytest.fixture
def port() -> int:
    return free_port()
