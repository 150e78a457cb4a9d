"""Classes that a configuration names: `module->Class` and `path/file.py->Class`.

A name that does not lead to a usable class is a ConfigError that says what was found instead. What the class does
is not looked at.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from astune.schema import ConfigError, described, is_users

T = TypeVar("T")

_ARROW = "->"
_FORMS = "`module->Class` or `path/file.py->Class`"
_EXTRAS = {
    "agentscope": "agentscope",
    "mcp": "agentscope",
    "torch": "local",
    "transformers": "local",
    "gymnasium": "frozenlake",
    "pyarrow": "data",
    "reasoning_gym": "reasoning-gym",
    "textworld": "textworld",
}
"""Packages that an extra of ours installs."""


def is_reference(text: str) -> bool:
    """Whether `text` names a class rather than something that is built in."""
    return _ARROW in text


def import_class(reference: str, *, key: str, base: type[T], base_dir: Path | None = None) -> type[T]:
    """The class behind `reference`, checked to derive from `base` and to define its abstract methods.

    Args:
        reference: `module->Class` or `path/file.py->Class`; looked up in the working directory, then in `base_dir`.
        key: the configuration key that holds it, for the error.
        base: what the class must derive from.
        base_dir: the configuration's folder.

    Raises:
        ConfigError: the reference is malformed, does not import, or names something else.
    """
    location, arrow, name = (part.strip() for part in reference.partition(_ARROW))
    if not arrow or not location or not name.isidentifier():
        raise ConfigError(f"{key}: {reference!r} does not have the form {_FORMS}", hint=_form_hint(reference, base))
    if location.endswith(".py") or "/" in location:
        module = _load_file(location, key, base_dir)
    else:
        module = _load_module(location, key, base_dir)
    return _class_of(module, name, base, key, location)


def _form_hint(spec: str, base: type) -> str:
    module, _, name = spec.replace(":", ".").replace(">", ".").replace("-", "").rpartition(".")
    if module and name[:1].isupper():
        return f"did you mean {module.rstrip('.')}->{name}?"
    location = spec.partition(_ARROW)[0].strip() or "my_file.py"
    return f"name the class too, one derived from {base.__name__}: {location}->My{base.__name__.removesuffix('Base')}"


def _load_file(location: str, key: str, base_dir: Path | None) -> ModuleType:
    path = _find_file(location, key, base_dir)
    name = f"astune_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:  # a workflow and a judge in one file share its module
        return sys.modules[name]
    _let_import_from(path.parent, first=False)
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError(f"{key}: {path} is not a Python file", hint="its name must end in .py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except BaseException as cause:
        del sys.modules[name]
        if not isinstance(cause, Exception):
            raise
        raise _failed_import(cause, str(path), key) from cause
    return module


def _find_file(location: str, key: str, base_dir: Path | None) -> Path:
    given = Path(location).expanduser()
    folders = [Path.cwd()] if base_dir is None else [Path.cwd(), base_dir]
    for folder in folders:
        path = (folder / given).resolve()
        if path.is_file():
            return path
    looked = " and ".join(dict.fromkeys(str(folder) for folder in folders))
    parent = next((folder / given.parent for folder in folders if (folder / given.parent).is_dir()), None)
    there = sorted(p.name for p in parent.glob("*.py")) if parent else []
    close = difflib.get_close_matches(given.name, there, n=1, cutoff=0.5)
    if close:
        hint = f"did you mean {given.with_name(close[0])}?"
    elif there:
        hint = f"{parent} has {', '.join(there[:8])}"
    else:
        hint = "relative paths start at the working directory, then at the configuration's folder"
    raise ConfigError(f"{key}: there is no file {location} (looked in {looked})", hint=hint)


def _load_module(location: str, key: str, base_dir: Path | None) -> ModuleType:
    _let_import_from(Path.cwd(), first=True)  # an installed `astune` starts without it, `python launcher.py` has it
    if base_dir is not None:
        _let_import_from(base_dir.resolve(), first=False)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(location)
    except ModuleNotFoundError as cause:
        missing = cause.name or ""
        if location == missing or location.startswith(f"{missing}."):
            raise ConfigError(f"{key}: there is no module {location}", hint=_nearest_module(location)) from None
        raise _failed_import(cause, location, key) from cause
    except Exception as cause:
        raise _failed_import(cause, location, key) from cause


def _let_import_from(folder: Path, *, first: bool) -> None:
    """Imports find modules in the folder; unless `first`, what is installed under the same name goes before."""
    if str(folder) not in sys.path:
        sys.path.insert(0 if first else len(sys.path), str(folder))


def _nearest_module(location: str) -> str:
    """What stands at the deepest part of the dotted name that does exist."""
    parts = location.split(".")
    for length in range(len(parts) - 1, -1, -1):
        parent = ".".join(parts[:length])
        try:
            search = list(importlib.import_module(parent).__path__) if parent else None
        except (ImportError, AttributeError):
            continue
        names = sorted(info.name for info in pkgutil.iter_modules(search) if not info.name.startswith("_"))
        close = difflib.get_close_matches(parts[length], names, n=1, cutoff=0.6)
        if close:
            return f"did you mean {'.'.join([*parts[:length], close[0], *parts[length + 1 :]])}?"
        if parent and names:
            return f"{parent} has {', '.join(names[:12])}"
        if parent:
            return f"{parent} is a package without modules"
        break
    return (
        f"modules are looked up in the working directory ({Path.cwd()}), the configuration's folder and the environment"
    )


def _failed_import(cause: Exception, location: str, key: str) -> ConfigError:
    if isinstance(cause, SyntaxError) and cause.filename:
        return ConfigError(
            f"{key}: {cause.filename}, line {cause.lineno} is not valid Python: {cause.msg}",
            hint=(cause.text or "").strip(),
        )
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if "importlib" not in frame.filename]
    frames = [frame for frame in frames if frame.filename != __file__]
    frames = [frame for frame in frames if is_users(frame.filename)] or frames
    at = f" ({frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    hint = "the mistake is in that file; importing it alone in Python shows the same"
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        package = cause.name.partition(".")[0]
        extra = _EXTRAS.get(package)
        hint = f"pip install 'astune[{extra}]'" if extra else f"install the package that has `{package}`"
    return ConfigError(f"{key}: importing {location} failed: {described(cause)}{at}", hint=hint)


def _class_of(module: ModuleType, name: str, base: type[T], key: str, location: str) -> type[T]:
    if not hasattr(module, name):
        raise ConfigError(f"{key}: {location} has no class {name}", hint=_classes_hint(module, name, base))
    found: Any = getattr(module, name)
    if not inspect.isclass(found):
        kind = "a function" if inspect.isroutine(found) else f"of type {type(found).__name__}"
        raise ConfigError(f"{key}: {location}->{name} is {kind}, not a class", hint=_classes_hint(module, name, base))
    if not issubclass(found, base):
        bases = ", ".join(parent.__name__ for parent in found.__bases__)
        raise ConfigError(
            f"{key}: {name} in {location} is not a {base.__name__}, it derives from {bases}",
            hint=f"write `class {name}({base.__name__})` with `from {_public_home(base)} import {base.__name__}`",
        )
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        own = [member for member in vars(found) if not member.startswith("__")]
        close = difflib.get_close_matches(missing[0], own, n=1, cutoff=0.5)
        raise ConfigError(
            f"{key}: {name} in {location} lacks the method{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            hint=f"did you mean {missing[0]} where it defines {close[0]}?" if close else _signature(base, missing[0]),
        )
    return found


def _public_home(base: type) -> str:
    """The package that exports the class, which users import it from."""
    package = base.__module__.rpartition(".")[0]
    exported = hasattr(sys.modules.get(package), base.__name__)
    return package if exported else base.__module__


def _signature(base: type, method: str) -> str:
    function = getattr(base, method)
    prefix = "async def" if inspect.iscoroutinefunction(function) else "def"
    return f"define `{prefix} {method}{inspect.signature(function)}`"


def _classes_hint(module: ModuleType, name: str, base: type) -> str:
    classes = {
        member: found
        for member, found in vars(module).items()
        if inspect.isclass(found) and (found.__module__ == module.__name__ or issubclass(found, base))
    }
    fitting = [m for m, found in classes.items() if issubclass(found, base) and found is not base]
    close = difflib.get_close_matches(name, fitting or classes, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    shown = fitting or list(classes)
    return f"it has the classes {', '.join(shown)}" if shown else "it defines no class"
