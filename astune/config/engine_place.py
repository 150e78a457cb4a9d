"""Location of an engine's own Python environment."""

from __future__ import annotations

import sys
from pathlib import Path

from astune.config.schema import AstuneConfig, ClusterEngine
from astune.schema import ConfigError


def interpreter(config: AstuneConfig, engine: ClusterEngine) -> str:
    """Return the Python of the engine's environment: the configured one, the one in this folder, or the one beside
    astune's. Raises ConfigError if there is none."""
    named: str = getattr(config.environments, engine)
    usual = Path(f".venv-{engine}", "bin", "python")
    places = [Path(named)] if named else [usual, Path(sys.prefix).parent / usual]
    python = next((place for place in places if place.is_file()), places[-1]).absolute()
    if not python.is_file():
        raise ConfigError(
            f"{engine}'s environment does not exist: {python}",
            hint=f"create it with `make env-{engine}`, or set environments.{engine} to its interpreter",
        )
    return str(python)
