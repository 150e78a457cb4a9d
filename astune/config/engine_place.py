"""The place of an engine: in an environment of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from astune.config.schema import AstuneConfig, ClusterEngine
from astune.schema import ConfigError


def interpreter(config: AstuneConfig, engine: ClusterEngine) -> str:
    """The Python of the engine's environment: the one that is named, or in this folder, or beside astune's own.

    Raises:
        ConfigError: there is none.
    """
    named: str = getattr(config.environments, engine)
    usual = Path(f".venv-{engine}", "bin", "python")
    places = [Path(named)] if named else [usual, Path(sys.prefix).parent / usual]
    python = next((place for place in places if place.is_file()), places[-1]).absolute()
    if not python.is_file():
        raise ConfigError(
            f"{engine}'s environment is not there: {python}",
            hint=f"make it with `make env-{engine}`, or name its interpreter in environments.{engine}",
        )
    return str(python)
