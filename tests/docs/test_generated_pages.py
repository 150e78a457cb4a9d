"""The pages that `make docs` writes from the code say what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import make_docs
import memory_page
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


def test_the_math_agents_table_has_the_memory_that_is_estimated():
    experiment = make_docs.DOCS.parents[1] / "tutorial/example_math_agent/math_agent.yaml"
    text = experiment.read_text(encoding="utf-8")
    found = re.findall(r"Qwen/(Qwen2.5-[\d.]+B)-Instruct +[\d.]+ B +(\d+) or (\d+) GiB( with)?", text)
    assert len(found) == 4
    for model, *figures, with_adapters in found:
        lora = ("model.lora.rank=32",) if with_adapters else ()
        for figure, tokens in zip(figures, (8192, 2048), strict=True):
            settings = ("rollout.max_response_length_in_one_turn=512", f"trainer.tokens_per_microbatch={tokens}", *lora)
            assert figure == f"{memory_page.gib_of(memory_page.SHAPES[model], settings, experiment):.0f}", model
