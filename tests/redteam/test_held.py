"""Every kind of `make held` has its tests."""

from __future__ import annotations

import re
from pathlib import Path

import held


def test_every_kind_names_tests_that_are_there() -> None:
    names = [
        f"{path.relative_to(held.ROOT)}::{name}"
        for path in Path(held.ROOT, "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
    for kind, places in held.KINDS.items():
        for place in places:
            assert any(re.fullmatch(f"{place}(::.*)?", name) for name in names), f"{kind}: {place}"
