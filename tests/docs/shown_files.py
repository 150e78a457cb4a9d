"""The code that documentation pages show: blocks, and the files that they name in their first line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("README*.md")),
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*/*.md")),
    *sorted((ROOT / "tutorial").rglob("*.md")),
]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)
_FILE_NAME = re.compile(r"# ([\w./-]+\.(?:py|yaml))$")


@dataclass(frozen=True)
class Block:
    """One fenced block. `file` is the name that its first line gives it, None for one that is no whole file."""

    page: Path
    line: int
    language: str
    text: str
    file: str | None


def blocks(page: Path, language: str | None = None) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        first = _FILE_NAME.match(match[2].splitlines()[0] if match[2].strip() else "")
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(page, line, match[1], match[2], first[1] if first else None))
    return [block for block in found if language in (None, block.language)]


def files_of(page: Path) -> dict[str, str]:
    """Every file that the page shows whole; one that is shown twice is the same both times."""
    files: dict[str, str] = {}
    for block in blocks(page):
        if block.file is not None:
            assert files.setdefault(block.file, block.text) == block.text, f"{page.name} shows two {block.file}"
    return files


def write_files(page: Path, folder: Path) -> list[Path]:
    written = []
    for name, text in files_of(page).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written
