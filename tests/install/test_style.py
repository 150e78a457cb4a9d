"""Format, lint and types hold, and what make gives its commands: so that CI sees it too."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
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


@pytest.mark.slow
def test_a_public_name_of_a_text_is_defined_in_one_file():
    files: dict[tuple[str, str], list[str]] = {}
    for path in sorted((_ROOT / "astune").rglob("*.py")):
        for statement in _tree(path).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if name[0] != "_":
                    files.setdefault((name, text), []).append(str(path.relative_to(_ROOT)))
    assert not {name: where for name, where in files.items() if len(where) > 1}


def test_rooms_import_from_those_above_them_in_the_contributors_table():
    table = (_ROOT / "docs/en/architecture.md").read_text().partition("## The packages")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    rooms = [room for row in rows for room in re.findall(r"`(\w+)`", row)]
    folders = {path.name for path in (_ROOT / "astune").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert set(rooms) == folders
    listed = (_ROOT / "CONTRIBUTING.md").read_text().partition("Imports point downward:")[2].partition(".")[0]
    assert re.findall(r"`(\w+)`", listed) == [room for room in rooms if room != "default_config"]
    upward = [
        f"{path.relative_to(_ROOT)}: {module}"
        for room in rooms
        for path in sorted((_ROOT / "astune" / room).rglob("*.py"))
        for module in _modules_of_ours(path)
        if module.split(".")[1] in rooms[rooms.index(room) + 1 :]
    ]
    assert not upward, "\n".join(upward)


def test_tutorials_import_from_astune_itself_and_hide_nothing_from_the_type_checker():
    open_rooms = ("astune.debug", "astune.environments.")  # breakpoints, and what a built-in environment says of itself
    for path in sorted((_ROOT / "tutorial").rglob("*.py")):
        assert not re.search(r"(pyright|type): ignore", path.read_text()), path
        assert all(module.startswith(open_rooms) for module in _modules_of_ours(path)), path


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _modules_of_ours(path: Path) -> list[str]:
    return [module for module, _ in _imports(path) if module.startswith("astune.")]


def _imports_private(path: Path) -> bool:
    text = path.read_text()
    if "._" not in text and "import _" not in text:
        return False
    names = [f"{module}.{name}" for module, name in _imports(path)]
    return any(name.startswith("astune.") and "._" in name.replace(".__", ".") for name in names)


def _imports(path: Path) -> list[tuple[str, str]]:
    """Module and name of each import; the name is empty where a module is imported."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(_tree(path)):
        match node:
            case ast.ImportFrom(module=str(module), level=0):
                found += [(module, alias.name) for alias in node.names]
            case ast.Import():
                found += [(alias.name, "") for alias in node.names]
            case _:
                pass
    return found
