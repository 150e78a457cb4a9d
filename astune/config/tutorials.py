"""Files of the tutorials that ship with astune, found by location and not by the package name `tutorial`.

In a clone they are the folder `tutorial`. A wheel holds the same folder as data in `astune/shipped`, so it installs no
package of that name, which the user's own folder may have.
"""

from __future__ import annotations

from pathlib import Path

from astune.schema import ConfigError

_ASTUNE = Path(__file__).parents[1]
TUTORIALS_IN = _ASTUNE / "shipped" if (_ASTUNE / "shipped").is_dir() else _ASTUNE.parent
"""Folder that holds `tutorial`."""
TUTORIALS = TUTORIALS_IN / "tutorial"
DEMO = "example_calculator/calculator.yaml"
DEMO_SETTINGS = (
    "model.lora.rank=16",
    "model.lora.alpha=32",
    "trainer.optim.lr=5.0e-4",
    "trainer.optim.warmup_steps=0",
    "trainer.loss.updates_per_step=2",
    "trainer.total_steps=20",
    "trainer.tokens_per_microbatch=2048",
    "rollout.max_response_length_in_one_turn=32",
)
"""Adapters, with half of the memory and a quarter of the disk, and two updates a step, which clusters refuse. A
micro-batch may be twice as long: adapters leave the memory for it, and groups share what they begin with."""


def tutorial_file(name: str) -> Path:
    """Return the path of a tutorial's file, such as `example_calculator/calculator.yaml`. Raises ConfigError if it was
    not installed."""
    path = TUTORIALS / name
    if not path.is_file():
        raise ConfigError(
            f"the tutorial {name} is not installed: {path} does not exist",
            hint="reinstall astune, or run this in a clone of the repository",
        )
    return path
