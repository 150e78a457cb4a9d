"""The pages that `make docs` writes from the code say what the code says."""

from __future__ import annotations

import ast
import re

import make_docs
import pytest

import astune

PAGES = make_docs.pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path):
    assert path.read_text(encoding="utf-8") == PAGES[path], f"{path.name} is out of date: make docs"


def test_the_api_page_has_everything_that_astune_exports():
    shown: set[str] = set()
    for code in re.findall(r"^```python\n(from astune import .*?)^```", PAGES[make_docs.DOCS / "api.md"], re.M | re.S):
        shown |= {alias.name for node in ast.parse(code).body for alias in node.names}
    assert shown == set(astune.__all__)
