"""The fixtures of the launcher's tests: a marker for processes, and a record of processes of their own."""

from launcher_helpers import marker, registry  # noqa: F401
