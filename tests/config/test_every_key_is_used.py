"""Every key of the configuration is read by code beyond the configuration itself.

What a section is called where it is read is found out from annotations (`loss: LossConfig`) and from assignments
(`trainer = config.trainer`), in any file. A key that only verl or Trinity follow is in their key maps.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import astune
from astune.config import schema
from astune.config.keys import NAME, all_keys, keys_of
from astune.config.schema import AstuneConfig, ClusterEngine, StrictModel

PACKAGE = Path(astune.__file__).parent
MAPS = PACKAGE / "default_config"
Section = type[StrictModel]
CHOSEN = {"normalise_advantages", "clip_low", "clip_high", *get_args(ClusterEngine)}
"""Keys whose names are in a table of the package."""
Names = dict[str, set[Section]]
_TELLING = (
    ast.arg
    | ast.AnnAssign
    | ast.Assign
    | ast.For
    | ast.comprehension
    | ast.NamedExpr
    | ast.keyword
    | ast.Attribute
    | ast.Call
)
"""Nodes that give something a name, or read an attribute."""
SECTIONS: dict[str, Section] = {
    name: value for name, value in vars(schema).items() if isinstance(value, type) and issubclass(value, StrictModel)
}


@pytest.mark.slow
def test_every_key_is_read_somewhere():
    read = keys_read_in(*PACKAGE.rglob("*.py")) | keys_in_maps()
    unread = [path for path, key in all_keys().items() if key.section is None and _owner(path) not in read]
    assert unread == []


def test_a_key_that_nobody_reads_is_found(tmp_path):
    (tmp_path / "reads.py").write_text(
        "def f(config: AstuneConfig, loss: LossConfig):\n"
        "    optim = config.trainer.optim\n    return loss.kl_coef, optim.lr, config.seed\n"
    )
    assert keys_read_in(tmp_path / "reads.py") == {
        ("AstuneConfig", "trainer"),
        ("TrainerConfig", "optim"),
        ("LossConfig", "kl_coef"),
        ("OptimConfig", "lr"),
        ("AstuneConfig", "seed"),
    }


def _owner(path: str) -> tuple[str, str]:
    """The section's class and the key's name in it."""
    section, _, name = path.rpartition(".")
    above = all_keys().get(section)
    owner = AstuneConfig if above is None else above.section
    assert owner is not None, path
    return owner.__name__, name


def keys_in_maps() -> set[tuple[str, str]]:
    maps = [json.loads(path.read_text()) for path in MAPS.glob("config_auto_convertion_*.json")]
    words = {word for each in maps for key in each for word in key.strip("()").replace("(", " ").split()}
    paths = {word.removeprefix("astune.") for word in words}
    return {_owner(path) for path in paths if path in all_keys() and NAME not in path}


def keys_read_in(*paths: Path) -> set[tuple[str, str]]:
    """(section, key) of each attribute that is read from something known to be a section."""
    nodes = [node for path in paths for node in ast.walk(_without_models(path)) if isinstance(node, _TELLING)]
    key_names = {path.rpartition(".")[2] for path in all_keys()}
    known: Names = {}
    for node in nodes:
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            name = node.arg if isinstance(node, ast.arg) else _name(node.target)
            words = [word.id for word in ast.walk(node.annotation) if isinstance(word, ast.Name)]
            known.setdefault(name, set()).update(SECTIONS[word] for word in words if word in SECTIONS)
    bindings = [binding for node in nodes for binding in _bindings(node)]
    for _ in range(3):  # names of names of names
        for name, value in bindings:
            known.setdefault(name, set()).update(_sections(value, known))
    return {
        (section.__name__, name)
        for node in nodes
        for value, names in _reads(node)
        if names & key_names
        for section in _sections(value, known)
        for name in names & keys_of(section).keys()
    }


def _reads(node: ast.AST) -> Iterator[tuple[ast.expr, set[str]]]:
    """What is read from what: `loss.kl_coef`, and `getattr(loss, name)` for the names that are chosen at run time."""
    if isinstance(node, ast.Attribute):
        yield node.value, {node.attr}
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        yield node.args[0], CHOSEN


def _without_models(path: Path) -> ast.Module:
    """The code of a file without sections, whose own checks of a value are no effect of it."""
    tree = ast.parse(path.read_text())
    if path.parent == PACKAGE / "config":
        tree.body = [node for node in tree.body if not _is_model(node)]
    return tree


def _is_model(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and node.name != "AstuneConfig" and node.name in SECTIONS


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names and what they stand for: assignments, tuples of them, and loops."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(map(_name, target.elts), node.value.elts, strict=False)
            else:
                yield _name(target), node.value
    elif isinstance(node, ast.For | ast.comprehension):
        for part in node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]:
            yield _name(part), node.iter
    elif isinstance(node, ast.NamedExpr):
        yield _name(node.target), node.value
    elif isinstance(node, ast.keyword) and node.arg:
        yield node.arg, node.value


def _name(node: ast.expr) -> str:
    """The last name of `self._loss` and of `loss`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _sections(node: ast.expr, known: Names) -> set[Section]:
    """What sections an expression may be."""
    if isinstance(node, ast.Attribute):
        inner = {
            key.section or key.entry
            for section in _sections(node.value, known)
            if (key := keys_of(section).get(node.attr)) is not None
        }
        return {section for section in inner if section is not None} or known.get(node.attr, set())
    if isinstance(node, ast.Name):
        return known.get(node.id, set())
    parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    return {section for part in parts for section in _sections(part, known)} - {AstuneConfig}
