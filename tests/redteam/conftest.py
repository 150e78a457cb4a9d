"""Where attacks are played, and the report of what they came to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from redteam_report import Report
from worlds import SECRET, Play, World, sandboxed_program

from astune.sandbox import Sandbox, SandboxConfig
from astune.sandbox.jail import Jail
from astune.schema import SandboxError

PROGRAM = "a sandboxed program"
LIMITS = SandboxConfig(timeout_s=20, memory_mb=384, output_kb=64, processes=12)


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    report = Report()
    yield report
    if os.environ.get("REDTEAM_REPORT"):
        report.write(Path(os.environ["REDTEAM_REPORT"]))


@pytest.fixture(scope="session", params=["zygote", "zygote-landlock", "bubblewrap", PROGRAM])
def box(request: pytest.FixtureRequest) -> Iterator[tuple[str, Play]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET, "do-not-tell")
        if request.param == PROGRAM:
            try:
                Jail([], 64).try_out()
            except SandboxError as cause:
                pytest.skip(f"this machine has no {cause.message}")
            yield PROGRAM, sandboxed_program(request.getfixturevalue("renderer"))
            return
        try:
            sandbox = asyncio.run(Sandbox.start(LIMITS, backend=request.param))
        except SandboxError as cause:
            pytest.skip(f"this machine has no {cause.message}")
        yield request.param, lambda code: asyncio.run(sandbox.run(code)).stdout
        asyncio.run(sandbox.aclose())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "world")
    yield world
    world.listening.close()
