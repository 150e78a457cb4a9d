"""An environment may need a Python whose packages are not ours: hosting asks for starlette and uvicorn alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

HOSTING = """
import sys
for name in ("pydantic", "pydantic_core", "httpx", "yaml", "numpy", "orjson"):
    sys.modules[name] = None
import astune.env_service.__main__
import astune.env_service._worker
from astune import Environment, EnvState, EnvStep, Task
from astune.env_service.built_in import environment_class
hosted = environment_class("calculator", asked_by="--env")
print(hosted(Task("12 + 30", main_query="?"), 0).get_init_state().state[-1]["content"])
"""


def test_an_environment_is_hosted_without_the_packages_that_training_needs():
    done = subprocess.run(
        [sys.executable, "-c", HOSTING],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "What is 12 + 30?\n"), done.stderr
