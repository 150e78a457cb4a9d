"""The sandbox, which runs unreviewed code without risk.

It runs Python and returns the output. No state is kept between calls, and no objects are passed in or out.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from astune.config.schema import SandboxConfig, SandboxLimits
from astune.sandbox._advice import advice
from astune.sandbox._budget import Budget, places_for
from astune.sandbox._program import BubblewrapBackend, RlimitsBackend
from astune.sandbox._zygote import ZygoteBackend
from astune.sandbox.base import Backend, SandboxResult
from astune.schema import SandboxError

_log = logging.getLogger(__name__)

BACKENDS = ("zygote", "zygote-landlock", "bubblewrap", "rlimits")
"""Backends in the order in which they are tried; the last one has no isolation and is only used if the user allows
it."""

_PROBE = SandboxLimits(timeout_s=30.0)


class Sandbox:
    """An open sandbox. `run` may be called many times at once, and from any event loop.

        async with Sandbox.open() as sandbox:
            result = await sandbox.run("print(6 * 7)")
            assert result.stdout == "42\\n"

    What the code does wrong is in the result.
    """

    def __init__(self, config: SandboxConfig, backend: Backend) -> None:
        self.config = config
        self._backend = backend
        self._budget = Budget(places_for(config.memory_mb))

    @classmethod
    @asynccontextmanager
    async def open(cls, config: SandboxConfig | None = None, *, backend: str | None = None) -> AsyncIterator[Sandbox]:
        """Open the first backend that works here.

        Args:
            config: limits, and whether running without isolation is allowed.
            backend: one of BACKENDS, to try no other.

        Raises:
            SandboxError: none works; the message has the reason of each.
        """
        sandbox = await cls.start(config, backend=backend)
        try:
            yield sandbox
        finally:
            await sandbox.aclose()

    @classmethod
    async def start(cls, config: SandboxConfig | None = None, *, backend: str | None = None) -> Sandbox:
        """`open` without a block: call `aclose` in the end. What was left open ends with this process."""
        config = config or SandboxConfig()
        reasons: list[str] = []
        hints: list[str] = []
        for candidate in _candidates(config, backend):
            try:
                await candidate.start()
                await _probe(candidate)
            except SandboxError as cause:
                await candidate.aclose()
                reasons.append(f"{candidate.name}: {cause.message}")
                hints += [cause.hint] if cause.hint else []
                continue
            if isinstance(candidate, RlimitsBackend):
                why = f" ({'; '.join(reasons)})" if reasons else ""
                _log.warning("code runs WITHOUT isolation, since sandbox.allow_unsafe is true%s", why)
            return cls(config, candidate)
        raise SandboxError(f"no sandbox works on this machine ({'; '.join(reasons)})", hint=advice(hints))

    @property
    def backend(self) -> str:
        """The name of the backend in use, one of BACKENDS."""
        return self._backend.name

    async def run(
        self, code: str, *, timeout_s: float | None = None, more_output_kb: int = 0, name: str = "the code"
    ) -> SandboxResult:
        """Run code as a separate program, without state of earlier calls.

        Args:
            timeout_s: timeout in seconds, above 0, if less than the configured one. Time in the queue, while other
                calls might use half of the machine's memory, does not count.
            more_output_kb: output beyond the configured one, for what the caller's own code prints.
            name: name in errors, for instance the episode's task.

        Raises:
            SandboxError: the sandbox failed. Whatever the code does is a result.
            ValueError: the time is not above 0.
        """
        limits = self.config
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s}, and has to be above 0")
        if timeout_s is not None:
            limits = limits.model_copy(update={"timeout_s": min(timeout_s, limits.timeout_s)})
        if more_output_kb:
            limits = limits.model_copy(update={"output_kb": limits.output_kb + more_output_kb})
        async with self._budget.place():
            try:
                return await self._backend.run(code, limits, name=name)
            except OSError as cause:  # no descriptors, no room on the disk
                raise SandboxError(f"the sandbox could not run {name}: {cause}") from cause

    async def aclose(self) -> None:
        await self._backend.aclose()


def _candidates(config: SandboxConfig, only: str | None) -> list[Backend]:
    known: list[Backend] = [ZygoteBackend(walled=True), ZygoteBackend(walled=False), BubblewrapBackend()]
    if config.allow_unsafe:
        known.append(RlimitsBackend())
    chosen = [backend for backend in known if only in (None, backend.name)]
    if not chosen:
        unsafe = "; it runs code without isolation" if only == "rlimits" else ""
        hint = "set astune.sandbox.allow_unsafe: true" if unsafe else f"backends are {', '.join(BACKENDS)}"
        raise SandboxError(f"the sandbox's backend {only!r} cannot be asked for{unsafe}", hint=hint)
    return chosen


async def _probe(backend: Backend) -> None:
    """Code that runs confined here, or the reason why it does not."""
    result = await backend.run("print(6 * 7)", _PROBE, name="a first line of code")
    if result.stdout != "42\n":
        raise SandboxError(f"a first line of code ended by {result.ended_by}: {result.stderr.strip()[-300:]}")
