"""The pages that `make docs` writes from the code say what the code says."""

from __future__ import annotations

import re

import make_docs
import pytest

import astune

PAGES = make_docs.pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path):
    assert path.read_text(encoding="utf-8") == PAGES[path], f"{path.name} is out of date: make docs"


def test_the_api_page_has_everything_that_astune_exports():
    assert set(re.findall(r"^from astune import (\w+)$", PAGES[make_docs.DOCS / "api.md"], re.M)) == set(astune.__all__)
