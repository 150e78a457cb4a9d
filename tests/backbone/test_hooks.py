from __future__ import annotations

import ast
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from astune.backbone.cluster.hooks import after_import, hook, hooks, replace, require_versions
from astune.schema import ConfigError

BACKBONE = Path(__file__).parents[2] / "astune" / "backbone"


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


def test_a_change_of_a_module_that_is_not_installed_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"changes the module json\.renamed, and the installed json has none"):
        after_import("json.renamed", lambda _: None)
    with pytest.raises(ConfigError, match="no_such_package"):
        after_import("no_such_package", lambda _: None)


def test_other_versions_are_refused_by_name() -> None:
    require_versions({"pytest": pytest.__version__}, engine="verl")
    with pytest.raises(ConfigError, match=rf"pytest 0\.1, and here it is {pytest.__version__}") as refused:
        require_versions({"pytest": "0.1"}, engine="verl")
    assert "make env-verl" in refused.value.hint
    with pytest.raises(ConfigError, match="no-such-package 1, and here it is not installed"):
        require_versions({"no-such-package": "1"}, engine="verl")


class Theirs:
    def step(self) -> int:
        return 1

    @classmethod
    def get_actor(cls) -> str:
        return "theirs"


def test_a_method_that_the_engine_has_is_replaced() -> None:
    @hooks
    class Ours(Theirs):
        @hook
        def step(self) -> int:
            return super().step() + 1

        @hook
        @classmethod
        def get_actor(cls) -> str:
            return "ours"

        def own(self) -> None: ...

    assert (Ours().step(), Ours.get_actor()) == (2, "ours")


@pytest.mark.parametrize("kind", [lambda function: function, classmethod, staticmethod])
def test_a_method_that_the_engine_has_not_is_an_error_when_its_class_is_made(kind: Any) -> None:
    replacing = {"renamed": hook(kind(lambda *_: None))}
    with pytest.raises(ConfigError, match=r"astune replaces renamed of .*Theirs, and the installed version"):
        hooks(type("Ours", (Theirs,), replacing))


def test_a_name_that_is_not_there_is_not_replaced() -> None:
    module = types.ModuleType("theirs")
    module.known = 1  # type: ignore[attr-defined]
    replace(module, "known", 2)
    assert module.known == 2
    with pytest.raises(ConfigError, match="astune replaces renamed of theirs"):
        replace(module, "renamed", 2)


def own_methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def calls_its_base(method: ast.AST, name: str) -> bool:
    return f"super().{name}(" in ast.unparse(method)


def marks(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(each) for each in node.decorator_list}


def test_every_method_that_extends_an_engines_is_checked_to_be_there() -> None:
    """What is not marked would be left uncalled in silence where an engine renamed it."""
    found = 0
    for engine in ("verl", "trinity"):
        for file in (BACKBONE / engine).glob("*.py"):
            if file.name == "backbone.py":  # in our own process
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if not isinstance(node, ast.ClassDef):
                    continue
                overriding = [each for each in own_methods(node) if "hook" in marks(each)]
                extending = [each for each in own_methods(node) if calls_its_base(each, each.name)]
                public = {"__init__", "default_config"}  # of documented interfaces
                unmarked = [each.name for each in extending if each.name not in public and "hook" not in marks(each)]
                assert not unmarked, (file, node.name)
                assert "hooks" in marks(node) or not overriding, (file, node.name)
                found += len(overriding)
    assert found > 30


def test_the_page_on_backbones_names_every_method_that_is_replaced() -> None:
    """Where a table has to be compared with a new version of an engine, nothing may be left out of it."""
    page = (BACKBONE.parents[1] / "docs" / "en" / "backbones.md").read_text()
    named = page.partition("### Hooks into the engines")[2].partition("\n## ")[0]
    for engine in ("verl", "trinity"):
        for file in (BACKBONE / engine).glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if not isinstance(node, ast.ClassDef) or "Workflow" in map(ast.unparse, node.bases):  # a public one
                    continue
                replaced = [each.name for each in own_methods(node) if "hook" in marks(each)]
                assert [name for name in replaced if f"`{name}`" not in named] == [], (file, node.name)
