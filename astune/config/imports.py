"""Classes named in a configuration: `module->Class` and `path/file.py->Class`.

Whatever goes wrong becomes one ConfigError that names the key, and says what was found instead.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from astune.schema import ConfigError

T = TypeVar("T")

ARROW = "->"


def is_reference(text: str) -> bool:
    """Whether `text` names a class rather than something that is built in."""
    return ARROW in text


def import_class(reference: str, *, key: str, base: type[T], base_dir: Path | None = None) -> type[T]:
    """The class behind `reference`, checked to derive from `base`.

    Args:
        reference: `module->Class`, the module found from the working directory too; or `path/file.py->Class`,
            relative to the working directory, then to `base_dir`.
        key: the configuration key that holds it, for the error.
        base: what the class must derive from.
        base_dir: the configuration's folder.

    Raises:
        ConfigError: the reference is malformed, does not import, or names something else.
    """
    found = import_object(reference, key=key, base_dir=base_dir)
    if not (inspect.isclass(found) and issubclass(found, base)):
        what = f"class {found.__name__}" if inspect.isclass(found) else type(found).__name__
        raise ConfigError(
            f"{key} names {reference!r}, a {what} that is no {base.__name__}",
            hint=f"derive it from {base.__module__}.{base.__name__}",
        )
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(
            f"{key} names {reference!r}, which lacks the method {', '.join(missing)}",
            hint=f"define it; its signature is in {base.__module__}.{base.__name__}",
        )
    return found


def import_object(reference: str, *, key: str, base_dir: Path | None = None) -> Any:
    """Whatever `reference` names; see `import_class`."""
    where, arrow, name = (part.strip() for part in reference.partition(ARROW))
    if not (where and arrow and name.isidentifier()):
        raise ConfigError(
            f"{key} is {reference!r}, which names no class",
            hint="write it as 'package.module->Class' or 'path/file.py->Class'",
        )
    module = _import_file(where, key, base_dir) if where.endswith(".py") else _import_module(where, key)
    if not hasattr(module, name):
        raise ConfigError(f"{key} names {reference!r}, but {where} has no {name!r}", hint=_what_is_there(module, name))
    return getattr(module, name)


def _import_module(name: str, key: str) -> ModuleType:
    working_directory = str(Path.cwd())
    if working_directory not in sys.path:
        sys.path.insert(0, working_directory)  # an installed `astune` starts without it, `python launcher.py` has it
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as cause:
        if cause.name is not None and (name == cause.name or name.startswith(cause.name + ".")):
            raise ConfigError(
                f"{key} names module {name!r}, but {cause.name!r} is neither in {working_directory} nor installed",
                hint="start from the folder that holds it, or write 'path/file.py->Class'",
            ) from cause
        raise _broken(key, name, cause) from cause
    except Exception as cause:
        raise _broken(key, name, cause) from cause


def _import_file(where: str, key: str, base_dir: Path | None) -> ModuleType:
    places = [folder / where for folder in (Path.cwd(), base_dir) if folder is not None]
    path = next((place.resolve() for place in places if place.is_file()), None)
    if path is None:
        raise ConfigError(
            f"{key} names a file that is not there: {' nor '.join(str(place) for place in dict.fromkeys(places))}",
            hint="paths are relative to the working directory, then to the configuration's folder",
        )
    # One name a path, so that two references to a file share its classes and pickling finds them.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{key} names {path}, which Python cannot load", hint="name a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as cause:
        del sys.modules[name]
        raise _broken(key, str(path), cause) from cause
    return module


def _broken(key: str, what: str, cause: Exception) -> ConfigError:
    line = ""
    if isinstance(cause, SyntaxError):
        line = f" (line {cause.lineno})"
    elif cause.__traceback__ is not None:
        frame = inspect.getinnerframes(cause.__traceback__)[-1]
        line = f" ({frame.filename}, line {frame.lineno})"
    hint = "install what it imports, or correct the name" if isinstance(cause, ImportError) else "mend that file"
    return ConfigError(f"{key} names {what}, which fails on import: {type(cause).__name__}: {cause}{line}", hint=hint)


def _what_is_there(module: ModuleType, wanted: str) -> str:
    own = [n for n, v in vars(module).items() if inspect.isclass(v) and v.__module__ == module.__name__]
    if not own:
        return "it defines no class"
    near = difflib.get_close_matches(wanted, own, n=1)
    return f"it defines {', '.join(sorted(own))}" + (f"; did you mean {near[0]}?" if near else "")
