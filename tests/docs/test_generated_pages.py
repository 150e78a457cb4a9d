"""The pages that `make docs` writes from the code say what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import make_docs
import pytest

import astune


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    """The text of each page, as `make docs` writes it."""
    return make_docs.pages()


def test_generated_pages_are_up_to_date(pages):
    outdated = [path.name for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    assert outdated == [], "out of date: make docs"


def test_the_api_page_has_everything_that_astune_exports(pages):
    shown: set[str] = set()
    for code in re.findall(r"^```python\n(from astune import .*?)^```", pages[make_docs.DOCS / "api.md"], re.M | re.S):
        shown |= {alias.name for node in ast.parse(code).body for alias in node.names}
    assert shown == set(astune.__all__)
