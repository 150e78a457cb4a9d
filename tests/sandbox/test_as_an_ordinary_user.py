"""The same attacks where the tests run as root, but the sandbox is opened by an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = 65534


def _as_nobody(*words: str, **options) -> subprocess.CompletedProcess[str]:
    """A Python that everybody may run, with the packages of the one that runs the tests."""
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    if not Path(python).exists():
        pytest.skip(f"{python} is not installed: the interpreter of the tests may be closed to other users")
    paths = os.pathsep.join([str(ROOT), sysconfig.get_paths()["purelib"]])
    return subprocess.run(
        [python, "-B", *words],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": paths},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.slow
def test_attacks_get_nowhere_where_an_ordinary_user_opened_the_sandbox(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user already")
    readable = _as_nobody("-c", "import astune.sandbox, pytest, pytest_asyncio, pytest_timeout")
    if readable.returncode:
        pytest.skip(f"nobody cannot import the packages: {readable.stderr.strip()[-300:]}")
    temporary = f"/tmp/astune-nobody-{os.getpid()}"
    options = ("-p", "no:cacheprovider", "--basetemp", temporary, "-rs", "-m", "not slow")
    done = _as_nobody("-m", "pytest", "tests/sandbox/test_attacks.py", *options, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
