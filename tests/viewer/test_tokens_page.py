"""The pictures of docs/en/tokens.md: the page says what they show, and the real model's run draws them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "en" / "tokens.md"
SHOWN = re.findall(
    r"^!\[([^\]\n]+)\]\((\.\./assets/tokens-\w+\.svg)\)\n\n(.+?)\n\n", PAGE.read_text("utf-8"), re.M | re.S
)
"""(text instead of the picture, its file, the paragraph behind it)"""
CAUSES = ["sampled again", "message edited", "another agent"]
SVG = "{http://www.w3.org/2000/svg}"


def texts(file: Path) -> list[str]:
    return [text.text or "" for text in ElementTree.parse(file).getroot().iter(f"{SVG}text")]


def numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])\d+(?:[.,]\d+)*", text))


def test_the_page_shows_forest_timelines_and_tree():
    assert [Path(file).name for _, file, _ in SHOWN] == ["tokens-forest.svg", "tokens-timelines.svg", "tokens-tree.svg"]


@pytest.mark.parametrize(("instead", "file", "paragraph"), SHOWN, ids=[Path(file).stem for _, file, _ in SHOWN])
def test_the_pages_numbers_are_those_of_the_picture(instead, file, paragraph):
    shown = texts(PAGE.parent / file)
    assert instead == shown[0]
    assert numbers(paragraph) <= numbers("\n".join(shown))


@pytest.mark.slow
def test_the_real_model_draws_them(smol_folder: Path, tmp_path: Path):
    """What a model samples may differ from machine to machine; what its agents do with it does not."""
    script = [sys.executable, str(ROOT / "scripts" / "draw_tokens_pictures.py"), "--into", str(tmp_path)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    drawn = {file.name: texts(file) for file in tmp_path.iterdir()}
    assert drawn.keys() == {Path(file).name for _, file, _ in SHOWN}
    causes = [text for text in drawn["tokens-forest.svg"] if text in CAUSES]
    assert causes == CAUSES
    assert drawn["tokens-timelines.svg"][0].startswith("4 timelines, ")
    assert drawn["tokens-tree.svg"][0].startswith("6 timelines of ")
