"""The text of docs/en/api.md: what users import, from the docstrings of the source. Nothing is imported but names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from typing import Any

INTRODUCTION = """# What you import

<!-- Made from docstrings by `make docs`; changes made here are lost. -->

The classes and functions that your files use. Whatever is not on this page may change without notice. The pages on
[workflows](workflow.md), [tasks](tasks.md), [judges](judge.md) and [Python](python_api.md) show how to use them.
"""

PUBLIC = {
    "Training from Python": (
        "astune.train",
        "astune.resume",
        "astune.evaluate",
        "astune.debug",
        "astune.tune",
        "astune.Run",
        "astune.Evaluation",
        "astune.load_config",
        "astune.AstuneConfig",
    ),
    "Agents": (
        "astune.Workflow",
        "astune.WorkflowOutput",
        "astune.AgentScopeLearnProtocol",
        "astune.AstuneProxy",
        "astune.Message",
        "astune.AgentModel",
    ),
    "Tasks": ("astune.Task", "astune.TaskReaderBase", "astune.TaskReaderConfig", "astune.TaskReaderHuggingFace"),
    "Judges": (
        "astune.JudgeBase",
        "astune.GroupJudgeBase",
        "astune.Reward",
        "astune.EnvServiceJudge",
        "astune.DenseEnvServiceJudge",
        "astune.MathAnswerAsJudge",
        "astune.MathAnswerAndLlmAsJudge",
        "astune.last_boxed",
        "astune.after_marker",
        "astune.same_answer",
        "astune.calculate",
        "astune.format_number",
    ),
    "Environments": ("astune.Environment", "astune.EnvState", "astune.EnvStep"),
    "What an episode left": ("astune.Episode",),
    "Code that a model wrote": (
        "astune.execute_python_code",
        "astune.run_python_code",
        "astune.execute_shell_command",
        "astune.Sandbox",
        "astune.SandboxConfig",
    ),
    "Debugging": ("astune.debug.bp",),
    "Trackers": ("astune.Tracker", "astune.TrackedRun"),
    "Algorithms": ("astune.Algorithm", "astune.Tokens", "astune.TokenLoss"),
    "Engines": ("astune.EngineBase", "astune.SamplingParams", "astune.Completion"),
    "Backbones": ("astune.Backbone",),
    "Errors": (
        "astune.AstuneError",
        "astune.ConfigError",
        "astune.ContextOverflow",
        "astune.MalformedCall",
        "astune.EngineError",
        "astune.EnvError",
        "astune.JudgeError",
        "astune.SandboxError",
        "astune.TaskReaderError",
        "astune.WorkflowError",
    ),
}
_SECTION = re.compile(r"(Args|Returns|Raises|Yields|Source):\s*(.*)")


def api_page() -> str:
    parts = [INTRODUCTION]
    for heading, names in PUBLIC.items():
        parts.append(f"## {heading}\n")
        parts += [_table_of_errors(names)] if heading == "Errors" else [_entry(name) for name in names]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts))


def _table_of_errors(names: tuple[str, ...]) -> str:
    short = [name.rpartition(".")[2] for name in names]
    lines = ["```python", "from astune import (", *(f"    {name}," for name in short), ")", "```", ""]
    lines += ["| error | when |", "|---|---|"]
    for name in names:
        found = _found(name)
        lines.append(f"| `{found.__name__}` | {' '.join((inspect.getdoc(found) or '').split())} |")
    return "\n".join([*lines, ""])


def _found(name: str) -> Any:
    """The object of that name; of `astune.debug`, which is a module too, the function."""
    module, _, short = name.rpartition(".")
    found = getattr(importlib.import_module(module), short)
    return importlib.import_module("astune.app").debug if inspect.ismodule(found) else found


def _entry(name: str) -> str:
    module, _, short = name.rpartition(".")
    found = _found(name)
    lines = [f"### {short}", "", "```python", f"from {module} import {short}", "```", ""]
    if inspect.isclass(found):
        return "\n".join([*lines, *_class(found)])
    if not inspect.isfunction(found):
        return "\n".join([*lines, f"`{short} = {found}`", ""])
    node = _node(found)
    return "\n".join([*lines, f"**`{_signature(node)}`**", "", *_text(node), ""])


def _class(found: type) -> list[str]:
    lines = [*_text(_node(found)), ""]
    fields, attributes, methods = {}, {}, {}
    for base in reversed([each for each in found.__mro__ if each.__module__.startswith("astune.")]):
        node = _node(base)
        for member, following in zip(node.body, [*node.body[1:], None], strict=True):
            name = _name(member)
            if name is None or (name.startswith("_") and name not in ("__call__", "__init__")):
                continue
            if name == "__init__":
                attributes |= _attributes(member)
            elif isinstance(member, ast.AnnAssign):
                if _string(following) or "ClassVar" not in ast.unparse(member.annotation):
                    fields[name] = (member, _string(following))
            else:
                methods[name] = member
    if fields:
        lines += ["| field | type | default | what it is |", "|---|---|---|---|"]
        lines += [_row(name, member, text) for name, (member, text) in fields.items()] + [""]
    if attributes:
        lines += ["| attribute | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {' '.join(text.split())} |" for name, text in attributes.items()] + [""]
    for name, node in methods.items():
        lines += [f"**`{_signature(node)}`**", "", *_text(node, inherited=getattr(found, name, None)), ""]
    return lines


def _attributes(init: Any) -> dict[str, str]:
    """The public attributes that an `__init__` sets, and that a docstring below describes."""
    found: dict[str, str] = {}
    for statement, following in zip(init.body, [*init.body[1:], None], strict=True):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        for target in targets:
            if isinstance(target, ast.Attribute) and not target.attr.startswith("_") and _string(following):
                found[target.attr] = _string(following)
    return found


def _row(name: str, member: ast.AnnAssign, text: str) -> str:
    default = "required" if member.value is None else f"`{_default(member.value)}`"
    cells = [f"`{name}`", f"`{ast.unparse(member.annotation)}`", default, " ".join(text.split())]
    return f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |"


def _default(value: ast.expr) -> str:
    """The text of a default: the value itself, or the factory's of `field(...)` and `Field(...)`."""
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("field", "Field"):
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default_factory" in given:
            return f"{ast.unparse(given['default_factory'])}()"
        return ast.unparse(given.get("default", value.args[0] if value.args else value))
    return ast.unparse(value)


def _name(member: ast.stmt) -> str | None:
    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
        return member.name
    if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
        return member.target.id
    return None


def _string(statement: ast.stmt | None) -> str:
    """The docstring that stands below a field."""
    if (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ):
        return statement.value.value
    return ""


def _node(found: Any) -> Any:
    found = inspect.unwrap(getattr(found, "__func__", found))
    node: Any = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    return node


def _signature(node: Any) -> str:
    kinds = [getattr(each, "id", getattr(each, "attr", "")) for each in node.decorator_list]
    if "property" in kinds or "cached_property" in kinds:
        return f"{node.name} -> {ast.unparse(node.returns)}" if node.returns else node.name
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(node.args))
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    mark = "".join(f"@{kind} " for kind in kinds if kind in ("classmethod", "staticmethod"))
    return f"{mark}{word} {node.name}({arguments}){f' -> {ast.unparse(node.returns)}' if node.returns else ''}"


def _text(node: Any, inherited: Any = None) -> list[str]:
    """A docstring as Markdown: indented examples in fences, sections such as `Args:` as lists."""
    raw = _string(node.body[0])
    if not raw:
        return (inspect.getdoc(inherited) or "").splitlines()[:1]
    indent = " " * node.body[0].col_offset
    lines = [line.removeprefix(indent).rstrip() for line in raw.strip().splitlines()]
    return _markdown(lines)


def _markdown(lines: list[str]) -> list[str]:
    written: list[str] = []
    example: list[str] | None = None  # the lines of the example that is being read
    in_list = False
    for position, line in enumerate(lines):
        if example is not None:
            if not line or line.startswith("    "):
                example.append(line[4:])
                continue
            written += _fenced(example)
            example = None
        section = _SECTION.fullmatch(line)
        if section:
            in_list = True
            written += [line] if section[2] else [line, ""]
        elif in_list and line.startswith("    "):
            written.append(f"- {line[4:]}" if not line.startswith("        ") else f"  {line.strip()}")
        elif line.startswith("    ") and not lines[position - 1]:
            example = [line[4:]]
        else:
            in_list = in_list and not line
            written.append(line)
    return written + (_fenced(example) if example else [])


def _fenced(example: list[str]) -> list[str]:
    text = "\n".join(example).rstrip()
    try:
        ast.parse(text)
    except SyntaxError:  # a table, or calls written as a drawing
        return ["```", text, "```", ""]
    return ["```python", text, "```", ""]
