"""An open sandbox of each backend that this machine has, and what stands outside of it for code to reach."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from astune.sandbox import Sandbox, SandboxConfig, SandboxResult
from astune.schema import SandboxError

ISOLATING = ("zygote", "zygote-landlock", "bubblewrap")
LIMITS = SandboxConfig(timeout_s=20, memory_mb=512, output_kb=64, processes=12, allow_unsafe=True)
SECRET_VARIABLE = "ASTUNE_TEST_SECRET"

Run = Callable[..., SandboxResult]


class Box:
    """A sandbox for tests that wait for one call after the other."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.backend = sandbox.backend

    def run(self, code: str, timeout_s: float | None = None) -> SandboxResult:
        return asyncio.run(self.sandbox.run(code, timeout_s=timeout_s))


def _opened(backend: str, config: SandboxConfig = LIMITS) -> Iterator[Box]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET_VARIABLE, "do-not-tell")
        try:
            sandbox = asyncio.run(Sandbox.start(config, backend=backend))
        except SandboxError as cause:
            pytest.skip(f"this machine has no {cause.message}")
        yield Box(sandbox)
        asyncio.run(sandbox.aclose())


@pytest.fixture(scope="session", params=ISOLATING)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """Each backend that isolates."""
    yield from _opened(request.param)


@pytest.fixture(scope="session", params=[*ISOLATING, "rlimits"])
def any_box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """Each backend, also the unsafe one: what limits and results are alike everywhere."""
    yield from _opened(request.param)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user that code runs as, and that code would be allowed to signal outside."""
    user = 65534 if os.geteuid() == 0 else None
    process = subprocess.Popen(["sleep", "600"], user=user, group=user, cwd="/")
    yield process
    process.kill()
    process.wait()


def processes_called(marker: str) -> list[int]:
    """The processes of this machine whose command line has `marker` in it."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    command = file.read()
            except OSError:
                continue
            if marker.encode() in command:
                found.append(int(name))
    return found


@pytest.fixture
def running() -> Callable[[str], list[int]]:
    return processes_called
