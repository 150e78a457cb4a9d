"""Environments selected by `env_type` or `--env`, built in or the user's own.

calculator built in reasoning_gym:leg_counting built in; what follows the colon is the class's `variant`
my_env.py->MyEnv the user's own, also `module->MyEnv`
"""

from __future__ import annotations

from astune.config.imports import import_class, is_reference
from astune.env_service.base import Environment
from astune.schema import EnvError

NO_ENV = "no_env"
"""The `env_type` of tasks without an environment."""

BUILT_IN = {
    "calculator": "astune.environments.calculator->Calculator",
    "gymnasium": "astune.environments.gymnasium->Gymnasium",
    "frozenlake": "astune.environments.frozenlake->FrozenLake",
    "reasoning_gym": "astune.environments.reasoning_gym->ReasoningGym",
    "textarena": "astune.environments.textarena->TextArena",
    "pettingzoo": "astune.environments.pettingzoo->PettingZoo",
    "textworld": "astune.environments.textworld->TextWorld",
    "appworld": "astune.environments.appworld->AppWorldEnvironment",
}


def environment_class(env_type: str, *, asked_by: str) -> type[Environment]:
    """Return the class behind `env_type`.

    Args:
        asked_by: source of the name, for the error: `env_type of task 7`, `--env`.

    Raises:
        EnvError: there is no such environment type.
        ConfigError: a `module->Class` that does not import.
    """
    if is_reference(env_type):
        return import_class(env_type, key=asked_by, base=Environment)
    name, colon, variant = env_type.partition(":")
    if name not in BUILT_IN:
        if ".py" in name:
            raise EnvError(
                f"{asked_by}: {env_type!r} does not name a class", hint="write it as 'file.py->Class', in quotes"
            )
        raise EnvError(
            f"{asked_by}: there is no environment {env_type!r} in this process",
            hint=f"use one of {NO_ENV}, {', '.join(BUILT_IN)}, or 'module->Class'; one that a service hosts needs "
            "metadata.env_url, which task_reader.env_service.env_url sets",
        )
    found = import_class(BUILT_IN[name], key=asked_by, base=Environment)
    if bool(variant) != bool(found.example_variant) or (colon and not variant):
        expected = f"{name}:{found.example_variant}" if found.example_variant else name
        raise EnvError(f"{asked_by}: {env_type!r} is not how {name} is named", hint=f"write {expected}")
    return type(found.__name__, (found,), {"variant": variant, "__module__": found.__module__}) if variant else found
