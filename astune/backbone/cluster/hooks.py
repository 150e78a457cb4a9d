"""Hooks into an engine: the versions that they are for, and that what they replace is there.

verl and Trinity have no public place for much of what a run needs, so classes here derive from theirs and replace some
of their methods. A method that an engine renamed would be replaced by nobody and never called. So every such method is
marked `@hook`, and its class `@hooks`, which checks that the engine's class has it as soon as it is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from astune.schema import ConfigError
from astune.schema.after_import import after_import as change_after_import

_C = TypeVar("_C", bound=type)
_F = TypeVar("_F")
_MARK = "__astune_hook__"


def hook(method: _F) -> _F:
    """Return the method, marked as one that replaces the engine's; the outermost of its decorators."""
    setattr(method, _MARK, True)
    return method


def hooks(cls: _C) -> _C:
    """Return the class, each method of which that is marked `@hook` replaces one of a base class.

    Raises:
        ConfigError: the installed engine has no such method.
    """
    for name, method in vars(cls).items():
        if getattr(method, _MARK, False) and not any(hasattr(base, name) for base in cls.__mro__[1:]):
            raise _not_there(f"{cls.__mro__[1].__module__}.{cls.__mro__[1].__qualname__}", name)
    return cls


def replace(owner: Any, name: str, value: Any) -> None:
    """Set an attribute that a module, a class or an instance of the engine's has already.

    Raises:
        ConfigError: it has none of that name.
    """
    if not hasattr(owner, name):
        raise _not_there(getattr(owner, "__name__", type(owner).__qualname__), name)
    setattr(owner, name, value)


def require_versions(versions: Mapping[str, str], *, engine: str) -> None:
    """Check that the installed packages are of the versions that the hooks are for.

    Raises:
        ConfigError: one is not, or is not installed.
    """
    for name, known in versions.items():
        try:
            found = version(name).partition("+")[0]
        except PackageNotFoundError:
            found = "not installed"
        if found != known:
            raise ConfigError(
                f"astune's hooks are for {name} {known}, and here it is {found}",
                hint=f"make env-{engine} makes an environment with it",
            )


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Change a module of the engine's now where it is imported already, or else as soon as it is.

    Raises:
        ConfigError: no module of that name is installed.
    """
    if name not in sys.modules:
        _require_there(name)
    change_after_import(name, change)


def _require_there(name: str) -> None:
    """Look for a module's file without importing its packages, which may take long, or be what is changed."""
    package, *rest = name.split(".")
    spec = importlib.util.find_spec(package)
    places = [Path(folder, *rest) for folder in (spec and spec.submodule_search_locations) or []]
    if not (any(place.with_suffix(".py").is_file() or place.is_dir() for place in places) if rest else spec):
        raise ConfigError(
            f"astune changes the module {name}, and the installed {package} has none of that name",
            hint="docs/en/backbones.md names the versions that the hooks are for",
        )


def _not_there(owner: str, name: str) -> ConfigError:
    return ConfigError(
        f"astune replaces {name} of {owner}, and the installed version has nothing of that name",
        hint="docs/en/backbones.md names the versions that the hooks are for",
    )
