"""The tutorials that are installed beside astune: their files, found by place and not by the name `tutorial`.

A folder of the user's may have that name as well, and imports then find either.
"""

from __future__ import annotations

from pathlib import Path

from astune.schema import ConfigError

_TUTORIALS = Path(__file__).parents[2] / "tutorial"


def tutorial_file(name: str) -> Path:
    """The file, such as `example_calculator/calculator.yaml`.

    Raises:
        ConfigError: it was not installed.
    """
    path = _TUTORIALS / name
    if not path.is_file():
        raise ConfigError(
            f"the tutorial {name} is not installed: there is no {path}",
            hint="reinstall astune, or run this in a clone of it",
        )
    return path
