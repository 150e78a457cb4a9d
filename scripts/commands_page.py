"""The text of docs/en/commands.md: every command of `astune` with its arguments and flags, from the parser itself."""

from __future__ import annotations

import re
from typing import Any

import typer

from astune.cli.app import app

INTRODUCTION = """# Commands and flags

<!-- Made from astune/cli by `make docs`; changes made here are lost. -->

`astune`, and `python launcher.py` in the clone, take the same commands and flags. `astune COMMAND --help` prints them.
An exit status of 0 is success, 1 a failure, 2 a mistake in flags or configuration, 130 an interruption.
"""


def commands_page() -> str:
    root = typer.main.get_command(app)
    return "\n".join([INTRODUCTION, *_sections("astune", root)])


def _sections(name: str, command: Any) -> list[str]:
    parts = [_section(name, command)]
    for each, below in getattr(command, "commands", {}).items():
        parts += _sections(f"{name} {each}", below)
    return parts


def _section(name: str, command: Any) -> str:
    parameters = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    flags = [each for each in parameters if each.param_type_name == "option"]
    words = [name, *(_argument(each) for each in arguments), *(["[FLAGS]"] if flags else [])]
    lines = [f"## {name}", "", _plain(command.help or ""), ""]
    if getattr(command, "commands", {}) and not command.invoke_without_command:
        below = ", ".join(f"[{each}](#{_anchor(f'{name} {each}')})" for each in command.commands)
        return "\n".join([*lines, f"Commands: {below}", ""])
    lines += ["```", " ".join(words), "```", ""]
    if arguments or flags:
        lines += ["| | |", "|---|---|"]
        lines += [f"| `{_argument(each)}` | {_cell(each.help or '')} |" for each in arguments]
        lines += [f"| {_flag(each)} | {_cell(_described(each))} |" for each in flags]
        lines.append("")
    return "\n".join(lines)


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def _flag(parameter: Any) -> str:
    value = (parameter.metavar or "").strip()
    if parameter.metavar is None and not parameter.is_flag:
        value = parameter.name.upper()
    spellings = [*parameter.opts, *parameter.secondary_opts]
    return ", ".join(f"`{_cell(f'{each} {value}'.strip())}`" for each in spellings)


def _described(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return f"{parameter.help or ''} Required."
    if default in (None, "", ()) or callable(default) or parameter.is_flag:
        return parameter.help or ""
    words = default if isinstance(default, tuple) else (default,)
    return f"{parameter.help or ''} Default: `{' '.join(map(str, words))}`."


def _plain(text: str) -> str:
    """A help text without the marks for colours."""
    return re.sub(r"\[/?[a-z]*\]", "", text).strip()


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


def _anchor(heading: str) -> str:
    return heading.replace(" ", "-")
