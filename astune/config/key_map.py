"""Map from astune's configuration keys to another engine's: the files `default_config/config_auto_convertion_*.json`.

    {"astune.trainer.tasks_per_step": ["data.train_batch_size"],
     "(astune.rollout.max_env_worker // 2)": ["actor_rollout_ref.rollout.max_num_seqs"]}

Parentheses enclose arithmetic over astune's keys, with `+ - * // /`, `min` and `max`. It is evaluated by this module
and never by `eval`. A value of null leaves the engine's own default.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from astune.config.loader import DEFAULT_YAML
from astune.config.schema import AstuneConfig
from astune.schema import ConfigError

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max}
_ROOT = "astune."

KeyMap = Mapping[str, list[str]]


def key_map_path(engine: str) -> Path:
    return DEFAULT_YAML.parent / f"config_auto_convertion_{engine}.json"


def read_key_map(engine: str) -> KeyMap:
    """Read the map from astune's keys to those of `engine` (`verl`, `trinity`)."""
    return json.loads(key_map_path(engine).read_text())


def engine_values(config: AstuneConfig, keys: KeyMap) -> dict[str, Any]:
    """Return the engine's keys and values that follow from the configuration. Raises ConfigError if the map has an
    unknown astune key or an invalid expression."""
    config_values = config.model_dump(mode="json")
    values: dict[str, Any] = {}
    for source, targets in keys.items():
        value = _arithmetic(source, config_values) if source.startswith("(") else _value_of(source, config_values)
        if value is not None:
            values |= dict.fromkeys(targets, value)
    return values


def _value_of(key: str, config_values: Mapping[str, Any]) -> Any:
    value: Any = config_values
    for name in key.removeprefix(_ROOT).split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise ConfigError(
                f"the key map names {key}, which is not a key of astune", hint="see docs/en/configuration.md"
            )
        value = value[name]
    return value


def _arithmetic(expression: str, config_values: Mapping[str, Any]) -> Any:
    """Evaluate the expression; None if one of its keys is null."""
    try:
        return _evaluate(ast.parse(expression, mode="eval").body, config_values)
    except (SyntaxError, ValueError, ZeroDivisionError) as cause:
        raise ConfigError(f"the key map has the expression {expression}: {cause}", hint="see key_map.py") from cause


def _evaluate(node: ast.expr, config_values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Attribute):
        return _value_of(ast.unparse(node), config_values)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        both = _evaluate(node.left, config_values), _evaluate(node.right, config_values)
        return None if None in both else _OPERATORS[type(node.op)](*both)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        values = [_evaluate(argument, config_values) for argument in node.args]
        return None if None in values else _FUNCTIONS[node.func.id](*values)
    raise ValueError(f"{ast.unparse(node)} is not arithmetic over keys")
