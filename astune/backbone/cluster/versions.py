"""Which versions hooks for versions of today are for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version


def require_versions(versions: Mapping[str, str], *, engine: str) -> None:
    """Raises RuntimeError where an installed version is none of those that the engine's hooks are for."""
    for name, known in versions.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "not installed"
        if found != known:
            raise RuntimeError(
                f"on a CPU astune trains with {name} {known}, and here it is {found}; see make env-{engine}"
            )
