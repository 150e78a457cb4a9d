"""Format, lint and types hold, and what make gives its commands: so that CI sees it too."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_FILES_WITH_PRIVATE_IMPORTS = 10
"""Test files that import modules or names with an underscore from the package: it may fall, and must not rise.

Those that are left compare numerical pieces with a reference of their own, each by itself: the engine's kernels, slots,
scheduler, sampling and two models (`tests/engine`), and the trainer's fast layers, attention over a prefix tree and
probe (`tests/trainer`). Through an engine or a trainer, an error in one of them would show as a slightly other number.
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ruff format --check .", "ruff check .", "pyright"])
def test_holds(command):
    program, *arguments = command.split()
    done = subprocess.run(
        [str(Path(sys.executable).parent / program), *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_make_writes_bytecode_whatever_the_shell_says():
    show = 'include Makefile\nshow:\n\t@echo "[$$PYTHONDONTWRITEBYTECODE]"\n'
    done = subprocess.run(
        ["make", "-f", "-", "show"],
        input=show,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr


def test_no_more_test_files_reach_behind_the_public_surface():
    reaching = [path for path in sorted((_ROOT / "tests").rglob("*.py")) if _imports_private(path)]
    assert len(reaching) <= _FILES_WITH_PRIVATE_IMPORTS, "\n".join(map(str, reaching))


def _imports_private(path: Path) -> bool:
    text = path.read_text()
    if "._" not in text and "import _" not in text:
        return False
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [
        f"{getattr(node, 'module', None) or ''}.{alias.name}".lstrip(".") for node in imports for alias in node.names
    ]
    return any(name.startswith("astune.") and "._" in name.replace(".__", ".") for name in names)
