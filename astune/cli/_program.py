"""`astune train -- COMMAND`: an experiment described by flags alone."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astune.schema import ConfigError


def experiment_of(
    command: Sequence[str], *, tasks: Path, judge: str | None, validation: Path | None, model: str | None
) -> dict[str, Any]:
    """The experiment's values; what is not given is the default's. Raises ConfigError if the judge's file has no class,
    or several."""
    reader: dict[str, Any] = {"training": {"file_path": str(tasks)}}
    if validation is not None:
        reader["validation"] = {"file_path": str(validation)}
    values: dict[str, Any] = {
        "experiment_name": tasks.stem,
        "task_reader": {"type": "jsonl", "jsonl": reader},
        "rollout": {"workflow": {"command": list(command)}, "trust_program_reward": judge is None},
    }
    if judge is not None:
        values["task_judge"] = {"judge_protocol": _reference_of(judge)}
    if model is not None:
        values["model"] = {"path": model}
    return values


def _reference_of(judge: str) -> str:
    """`judge.py` with the class that it holds; any other reference as it is."""
    path = Path(judge)
    if "->" in judge or path.suffix != ".py" or not path.is_file():
        return judge
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, UnicodeDecodeError) as cause:
        raise ConfigError(f"--judge: {judge} is not valid Python: {cause}") from cause
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and _rewards(node)]
    if len(classes) != 1:
        raise ConfigError(
            f"--judge: {judge} has {len(classes)} classes with a method compute_reward",
            hint=f"name one, as {judge}->{classes[0] if classes else 'MyJudge'}",
        )
    return f"{judge}->{classes[0]}"


def _rewards(node: ast.ClassDef) -> bool:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(member, functions) and member.name == "compute_reward" for member in node.body)
