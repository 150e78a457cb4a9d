"""The tutorials that come with astune: their files, found by place and not by the name `tutorial`.

They are the folder `tutorial` of a clone. A wheel holds the same folder as data in `astune/shipped`, and so installs
no package of that name, which a folder of the user's may have as well.
"""

from __future__ import annotations

from pathlib import Path

from astune.schema import ConfigError

_ASTUNE = Path(__file__).parents[1]
TUTORIALS_IN = _ASTUNE / "shipped" if (_ASTUNE / "shipped").is_dir() else _ASTUNE.parent
"""The folder that holds `tutorial`."""
TUTORIALS = TUTORIALS_IN / "tutorial"


def tutorial_file(name: str) -> Path:
    """Return the path of a tutorial's file, such as `example_calculator/calculator.yaml`.

    Raises:
        ConfigError: it was not installed.
    """
    path = TUTORIALS / name
    if not path.is_file():
        raise ConfigError(
            f"the tutorial {name} is not installed: there is no {path}",
            hint="reinstall astune, or run this in a clone of it",
        )
    return path
