"""Where verl is: an environment of its own."""

from __future__ import annotations

from pathlib import Path

from astune.config.schema import AstuneConfig
from astune.schema import ConfigError


def interpreter(config: AstuneConfig) -> str:
    """The Python of verl's environment.

    Raises:
        ConfigError: there is none.
    """
    named = config.environments.verl
    python = Path(named or ".venv-verl/bin/python").absolute()
    if not python.is_file():
        raise ConfigError(
            f"verl's environment is not there: {python}",
            hint="make it with `make env-verl`, or name its interpreter in environments.verl",
        )
    return str(python)
