"""Validation of the keyword arguments that a configuration passes to a class or function."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from astune.schema import ConfigError


def require_accepted(
    called: Callable[..., Any], params: Mapping[str, Any], *, key: str, positional: int, keys: Mapping[str, str] = {}
) -> None:
    """Refuse keyword arguments that `called` does not accept, and report required ones that are missing. Raises
    ConfigError if one is unknown, or one is missing.

    Args:
        called: the class or function.
        params: the arguments by their names.
        key: the configuration key that holds them, such as `rollout.params`.
        positional: how many arguments go before them.
        keys: the configuration key of each argument that is not under `key`.
    """
    signature, name = inspect.signature(called), getattr(called, "__name__", repr(called))
    taken = list(signature.parameters.values())[positional:]
    known = [one.name for one in taken if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    free = any(one.kind is Parameter.VAR_KEYWORD for one in taken)
    for unknown in [argument for argument in params if argument not in known and not free]:
        close = difflib.get_close_matches(unknown, known, n=1)
        raise ConfigError(
            f"{keys.get(unknown, f'{key}.{unknown}')}: {name} accepts no argument {unknown}",
            hint=f"did you mean {close[0]}?" if close else f"it accepts {', '.join(known) or 'none'}",
        )
    missing = [one.name for one in taken if one.name in known and one.default is Parameter.empty]
    missing = [argument for argument in missing if argument not in params]
    if missing:
        raise ConfigError(f"{key}: {name} requires {', '.join(missing)}", hint=f"set {key}.{missing[0]}")
