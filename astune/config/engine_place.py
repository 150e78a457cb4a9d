"""Where an engine is: in an environment of its own."""

from __future__ import annotations

from pathlib import Path

from astune.config.schema import AstuneConfig, ClusterEngine
from astune.schema import ConfigError


def interpreter(config: AstuneConfig, engine: ClusterEngine) -> str:
    """The Python of the engine's environment.

    Raises:
        ConfigError: there is none.
    """
    named: str = getattr(config.environments, engine)
    python = Path(named or f".venv-{engine}/bin/python").absolute()
    if not python.is_file():
        raise ConfigError(
            f"{engine}'s environment is not there: {python}",
            hint=f"make it with `make env-{engine}`, or name its interpreter in environments.{engine}",
        )
    return str(python)
