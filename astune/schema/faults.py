"""Collecting several errors of one experiment, to report them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from astune.schema.errors import AstuneError, ConfigError
from astune.schema.user_place import left_debugger

T = TypeVar("T")


class SeveralFaults(ConfigError):
    """Two or more errors; the message contains each with its hint."""

    def __init__(self, faults: Sequence[AstuneError]) -> None:
        lines = [f"  {fault.kind}: {fault.message}" + (f" ({fault.hint})" if fault.hint else "") for fault in faults]
        super().__init__(f"{len(faults)} errors:\n" + "\n".join(lines))
        self.faults = tuple(faults)


class Faults:
    """Collector that calls functions and keeps their errors until all were called.

    faults = Faults()
    workflow = faults.collect(lambda: import_class(...))
    tasks = faults.collect(lambda: reader.read())
    if faults or workflow is None or tasks is None:
        raise faults.error()
    """

    def __init__(self) -> None:
        self._found: list[AstuneError] = []

    def collect(self, call: Callable[[], T]) -> T | None:
        """Return the result of `call`; None if it fails. Quitting the debugger in it is not kept as an error."""
        try:
            return call()
        except SeveralFaults as error:
            self._found += error.faults
        except AstuneError as error:
            if left_debugger(error):
                raise
            self._found.append(error)
        return None

    def __bool__(self) -> bool:
        return bool(self._found)

    def error(self) -> AstuneError:
        """Return the error: a single one unchanged, several as SeveralFaults."""
        return self._found[0] if len(self._found) == 1 else SeveralFaults(self._found)
