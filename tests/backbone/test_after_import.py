from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from astune.backbone.cluster.after_import import after_import
from astune.backbone.cluster.versions import require_versions


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "changed_for_a_test"
    (tmp_path / f"{name}.py").write_text("seen = []\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def sees(what: str) -> Any:
    return lambda module: module.seen.append(what)


def test_a_module_is_changed_by_all_who_asked_when_it_is_imported_and_after(module: str) -> None:
    after_import(module, sees("first"))
    after_import(module, sees("second"))
    changed = importlib.import_module(module)
    assert changed.seen == ["first", "second"]
    after_import(module, sees("third"))
    assert changed.seen == ["first", "second", "third"]


def test_other_versions_are_refused_by_name() -> None:
    require_versions({"pytest": pytest.__version__}, engine="verl")
    with pytest.raises(RuntimeError, match=rf"pytest 0\.1, and here it is {pytest.__version__}; see make env-verl"):
        require_versions({"pytest": "0.1"}, engine="verl")
    with pytest.raises(RuntimeError, match="no-such-package 1, and here it is not installed"):
        require_versions({"no-such-package": "1"}, engine="verl")
