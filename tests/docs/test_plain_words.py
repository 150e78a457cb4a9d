"""Plain words: docstrings start with what a thing is or does, and no text, comment or name uses the dialect of old."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASTUNE = ROOT / "astune"
ROOMS = sorted(str(path.relative_to(ROOT)) for path in ASTUNE.iterdir() if (path / "__init__.py").is_file())
BESIDE = ("tutorial", "scripts")
RECORDS = {"decisions.md", "letter.md"}
"""Pages that record what was decided and promised, in the words of that time."""

STARTS = re.compile(r"(Of|Its|Those|As|With|Where|In|By|To|At|From|What|Which|How|That|This|It|They|Who|Whose|One)\b")
DIALECT = re.compile(
    r"\b(keepers?|the books|told|said|hears?|heard|mend(ed|s|ing)?|weigh(ed|s|ing)?|masters|anew|somebody|whose doing|"
    r"looks? away|goes on|left off|anybody's|everybody's|whomever|our books|is \w+'s business|weights of the day|"
    r"go(?:es)? on with --resume)\b",
    re.IGNORECASE,
)
NAMES = re.compile(
    r"(^|_)(told|said|hears?|heard|weigh(s|ed)?|mend(s|ed)?|theirs|ours|masters|keepers?|books|anybody|whose|"
    r"start_logprobs?)(_|$)",
    re.IGNORECASE,
)
"""Words of names; keys on disk and on a wire are strings, and keep their spelling."""


def sources(room: str) -> Iterator[tuple[Path, list[ast.AST], str]]:
    for path in sorted((ROOT / room).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        yield path, list(ast.walk(ast.parse(source))), source


def texts(nodes: list[ast.AST]) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and whether it is a docstring, of every string of a module."""
    bodies = [node.body for node in nodes if isinstance(getattr(node, "body", None), list)]  # pyright: ignore[reportAttributeAccessIssue]
    expressions = [each for body in bodies for each in body if isinstance(each, ast.Expr)]
    docstrings = {id(each.value) for each in expressions if isinstance(each.value, ast.Constant)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split()), id(node) in docstrings


@pytest.mark.parametrize("room", [*ROOMS, *BESIDE])
def test_names_docstrings_messages_comments_and_asserts_of_a_room_are_plain(room: str) -> None:
    found: list[str] = []
    for path, nodes, source in sources(room):
        for line, fault in [*faults(nodes, prompts=room in BESIDE), *comments(source), *names(nodes)]:
            found.append(f"{path.relative_to(ROOT)}:{line}: {fault}")
    assert not found, "\n".join(found)


def faults(nodes: list[ast.AST], *, prompts: bool) -> Iterator[tuple[int, str]]:
    """Line and fault of each text that is not plain or says a thing twice, and of each assert that narrows nothing.

    Args:
        prompts: only docstrings are read, since other strings may be words for a model.
    """
    for line, text, is_docstring in texts(nodes):
        if prompts and not is_docstring:
            continue
        if (is_docstring and STARTS.match(text)) or (" " in text and DIALECT.search(text)):  # a word alone is data
            yield line, f"not plain: {text[:100]}"
        if is_docstring and _twice(re.split(r"(?<=[.:;]) ", text)):
            yield line, f"says it twice: {text[:100]}"
    for node in nodes:
        if isinstance(node, ast.Assert) and not ast.unparse(node.test).startswith("isinstance("):
            yield node.lineno, f"asserts more than a type: {ast.unparse(node.test)}"


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and fault of each comment that is not plain."""
    if not any("#" in line and DIALECT.search(line) for line in source.splitlines()):
        return  # to find the tokens takes longer than all else
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and DIALECT.search(token.string):
            yield token.start[0], f"not plain: {token.string}"


def names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and fault of each name that is not plain: of functions, classes, arguments, variables and attributes."""
    for node in nodes:
        for key in ("name", "asname", "arg", "id", "attr"):
            if isinstance(name := getattr(node, key, None), str) and not is_plain(name):
                yield getattr(node, "lineno", 0), f"not a plain name: {name}"


@cache
def is_plain(name: str) -> bool:
    return NAMES.search(name) is None


def _twice(sentences: list[str]) -> bool:
    """Whether two neighbours are one sentence of several words."""
    plain = [sentence.strip(" .:;").lower() for sentence in sentences]
    return any(one == other and one.count(" ") > 2 for one, other in pairwise(plain))


@pytest.mark.parametrize(
    "file",
    [
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", "Makefile"),
        *sorted(
            str(path.relative_to(ROOT))
            for path in (
                *(page for page in (ROOT / "docs/en").glob("*.md") if page.name not in RECORDS),
                *(*ASTUNE.rglob("*.[ch]"), *ASTUNE.rglob("*.yaml"), *(ROOT / "scripts").glob("*.sh")),
            )
        ),
    ],
)
def test_a_page_or_another_file_that_is_no_python_is_plain(file: str) -> None:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    assert not [f"{file}:{number}: {line}" for number, line in enumerate(lines, 1) if DIALECT.search(line)]


def test_no_file_is_over_400_lines() -> None:
    lines = {
        str(path.relative_to(ASTUNE)): path.read_text(encoding="utf-8").count("\n") for path in ASTUNE.rglob("*.py")
    }
    assert not {path: n for path, n in lines.items() if n > 400}
