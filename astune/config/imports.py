"""Classes and functions that a configuration names: `module->Class` and `path/file.py->Class`.

A name that does not resolve to a usable class is a ConfigError that says what was found instead. The behaviour of the
class is not checked.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from astune.config._suggestions import Place, suggestion
from astune.config.code_of_runs import is_of_run, require_allowed, require_module_allowed
from astune.config.tutorials import TUTORIALS_IN
from astune.config.user_files import remember
from astune.schema import ConfigError, described, install_extra, is_users

T = TypeVar("T")

_ARROW = "->"
_FORMS = "`module->Class` or `path/file.py->Class`"
_EXTRAS = {
    "agentscope": "agentscope",
    "mcp": "agentscope",
    "dspy": "agentscope-tuner",
    "torch": "local",
    "transformers": "local",
    "gymnasium": "frozenlake",
    "pyarrow": "data",
    "reasoning_gym": "reasoning-gym",
    "textworld": "textworld",
}
"""Packages that one of astune's extras installs."""


def is_reference(text: str) -> bool:
    """Return whether `text` names a class rather than a built-in."""
    return _ARROW in text


def located(reference: str, base_dir: Path | None) -> str:
    """Return the reference, with an absolute path if its file is in `base_dir` and not in the working directory."""
    location, arrow, name = reference.partition(_ARROW)
    file = Path(location.strip()).expanduser()
    if base_dir is None or not arrow or file.suffix != ".py" or file.is_file():
        return reference
    beside = (base_dir / file).resolve()
    return f"{beside}{_ARROW}{name.strip()}" if beside.is_file() else reference


def import_class(reference: str, *, key: str, base: type[T], base_dir: Path | None = None) -> type[T]:
    """Import the class behind `reference` and check that it derives from `base` and defines its abstract methods.
    Raises ConfigError if the reference is malformed, does not import, or names something else.

    Args:
        reference: `module->Class` or `path/file.py->Class`; looked up in the working directory, then in `base_dir`.
        key: configuration key of the reference, for the error.
        base: what the class must derive from.
        base_dir: the configuration's folder.
    """
    named = _parsed(reference, key, base, base_dir)
    return _class_of(_load(named), named)


def import_class_or_function(
    reference: str, *, key: str, base: type[T], base_dir: Path | None = None
) -> type[T] | FunctionType:
    """Like `import_class`, but accept a function in place of the class."""
    named = _parsed(reference, key, base, base_dir)
    module = _load(named)
    found = getattr(module, named.name, None)
    return found if isinstance(found, FunctionType) else _class_of(module, named)


@dataclass(frozen=True)
class _Named:
    """A well-formed reference; `base` is what its class must derive from."""

    location: str
    name: str
    key: str
    base: type
    base_dir: Path | None

    @property
    def is_file(self) -> bool:
        return self.location.endswith(".py") or "/" in self.location

    @property
    def folders(self) -> list[Path]:
        """Folders to search, the working directory first."""
        given = [Path.cwd()] if self.base_dir is None else [Path.cwd(), self.base_dir.resolve()]
        return list(dict.fromkeys(given))

    def suggestion(self, places: Sequence[Place]) -> str:
        """Return a hint that names classes which import successfully; empty if there is none."""
        return suggestion(self.name, self.location, places, self.base, self._loaded)

    def _loaded(self, reference: str) -> type | None:
        """Return the class of a suggestion; None if it does not import. Suggestions are never nested."""
        location, _, name = reference.partition(_ARROW)
        try:
            found = getattr(_load(replace(self, location=location, name=name)), name, None)
        except ConfigError:
            return None
        fits = inspect.isclass(found) and issubclass(found, self.base) and not inspect.isabstract(found)
        return found if fits else None


def _parsed(reference: str, key: str, base: type, base_dir: Path | None) -> _Named:
    location, arrow, name = (part.strip() for part in reference.partition(_ARROW))
    if not arrow or not location or not name.isidentifier():
        hint = _form_hint(reference, base, key, base_dir)
        raise ConfigError(f"{key}: {reference!r} does not have the form {_FORMS}", hint=hint)
    return _Named(location, name, key, base, base_dir)


def _load(named: _Named) -> ModuleType:
    return _load_file(named) if named.is_file else _load_module(named)


def _form_hint(spec: str, base: type, key: str, base_dir: Path | None) -> str:
    """Return the reference in the right form if that imports, else the error that it would give."""
    module, _, name = spec.replace(":", ".").replace(">", ".").replace("-", "").rpartition(".")
    if module and name[:1].isupper():
        meant = f"{module.rstrip('.')}{_ARROW}{name}"
        try:
            import_class(meant, key=key, base=base, base_dir=base_dir)
        except ConfigError as error:
            return f"written as {meant}, {error.message.removeprefix(f'{key}: ')}; {error.hint}".rstrip("; ")
        return f"did you mean {meant}?"
    location = spec.partition(_ARROW)[0].strip()
    if location and Path(location).suffix == ".py":
        named = _Named(location, "", key, base, base_dir)
        there = named.suggestion([Place(folder / location, None) for folder in named.folders])
        if there:
            return f"add the class name: {there}"
    example = f"{location or 'my_file.py'}{_ARROW}My{base.__name__.removesuffix('Base')}"
    return f"add the name of a class derived from {base.__name__}, such as {example}"


def _load_file(named: _Named) -> ModuleType:
    path, key = _find_file(named), named.key
    require_allowed(path, key)
    if str(path) == os.path.realpath(getattr(sys.modules["__main__"], "__file__", None) or ""):
        return sys.modules["__main__"]  # the script that runs: importing it would run it a second time
    name = f"astune_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:  # a workflow and a judge in one file share its module
        return sys.modules[name]
    _let_import_from(path.parent, first=False)
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError(f"{key}: {path} is not a Python file", hint="its name must end in .py")
    module, before = importlib.util.module_from_spec(module_spec), set(sys.modules)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except BaseException as cause:
        del sys.modules[name]
        if not isinstance(cause, Exception):
            raise
        raise _failed_import(cause, str(path), key) from cause
    remember(name, path, before=before)
    return module


def _find_file(named: _Named) -> Path:
    given = Path(named.location).expanduser()
    for folder in named.folders:
        path = (folder / given).resolve()
        if path.is_file():
            return path
    parents = [folder / given.parent for folder in named.folders if (folder / given.parent).is_dir()]
    raise ConfigError(
        f"{named.key}: there is no file {named.location} (searched {' and '.join(map(str, named.folders))})",
        hint=named.suggestion([Place(parent, None) for parent in parents or named.folders])
        or "relative paths are resolved against the working directory, then the configuration's folder",
    )


def _load_module(named: _Named) -> ModuleType:
    location, key = named.location, named.key
    require_module_allowed(location.split("."), named.folders, key)
    _let_import_from(
        Path.cwd(), first=True
    )  # the installed `astune` command has no working directory on sys.path, `python launcher.py` has
    for folder in named.folders[1:]:
        _let_import_from(folder, first=False)
    importlib.invalidate_caches()
    try:
        _uncover(location.split("."), named.folders)
        return importlib.import_module(location)
    except ModuleNotFoundError as cause:
        missing = cause.name or ""
        if location == missing or location.startswith(f"{missing}."):
            raise ConfigError(f"{key}: module {location} not found", hint=_nearest(named)) from None
        raise _failed_import(cause, location, key) from cause
    except Exception as cause:
        raise _failed_import(cause, location, key) from cause


def _uncover(parts: Sequence[str], folders: Sequence[Path]) -> None:
    """Make a module importable although another folder has the name of its package.

    Python takes our `tutorial` for the user's folder `tutorial` where that has no `__init__.py`, or where ours was
    imported before; and the user's for ours where it has one. Both are then one package, the user's modules first.
    """
    for folder in (*folders, TUTORIALS_IN) if parts[0] != "astune" else ():
        module = folder.joinpath(*parts)
        if not (module.with_name(f"{parts[-1]}.py").is_file() or (module / "__init__.py").is_file()):
            continue
        if folder == TUTORIALS_IN:
            _let_import_from(folder, first=False)
        for length in range(1, len(parts)):
            package: Any = importlib.import_module(".".join(parts[:length]))
            own, others = str(folder.joinpath(*parts[:length])), list(package.__path__)
            if own not in others:
                package.__path__ = [*others, own] if folder == TUTORIALS_IN else [own, *others]
        return


def _let_import_from(folder: Path, *, first: bool) -> None:
    """Let imports find modules in the folder, with priority over installed ones only if `first`."""
    if str(folder) not in sys.path and not is_of_run(folder):
        sys.path.insert(0 if first else len(sys.path), str(folder))


def _nearest(named: _Named) -> str:
    """Yield classes of the deepest existing package of the dotted name, else of the user's folders."""
    parts = named.location.split(".")
    for length in range(len(parts) - 1, 0, -1):
        parent = ".".join(parts[:length])
        try:
            folders = list(importlib.import_module(parent).__path__)
        except (ImportError, AttributeError):
            continue
        found = named.suggestion([Place(Path(folder), parent) for folder in folders])
        if found:
            return found
    return named.suggestion([Place(folder) for folder in named.folders]) or (
        f"modules are searched in the working directory ({Path.cwd()}), the configuration's folder and the environment"
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
    hint = "fix that file; importing it alone in Python shows the same error"
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        package = cause.name.partition(".")[0]
        extra = _EXTRAS.get(package)
        hint = install_extra(extra) if extra else f"install the package that provides `{package}`"
    return ConfigError(f"{key}: importing {location} failed: {described(cause)}{at}", hint=hint)


def _class_of(module: ModuleType, named: _Named) -> Any:
    location, name, key, base = named.location, named.name, named.key, named.base
    if not hasattr(module, name):
        raise ConfigError(f"{key}: {location} has no class {name}", hint=_classes_hint(module, named))
    found: Any = getattr(module, name)
    if not inspect.isclass(found):
        kind = "a function" if inspect.isroutine(found) else f"of type {type(found).__name__}"
        hint = _classes_hint(module, named)
        raise ConfigError(f"{key}: {location}->{name} is {kind}, not a class", hint=hint)
    if not issubclass(found, base):
        bases = ", ".join(parent.__name__ for parent in found.__bases__)
        raise ConfigError(
            f"{key}: {name} in {location} is not a {base.__name__}, it derives from {bases}",
            hint=f"write `class {name}({base.__name__})` with `from {_public_home(base)} import {base.__name__}`",
        )
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing and _of_astune(found):
        raise ConfigError(
            f"{key}: {name} in {location} is a base class that does not define {', '.join(missing)}",
            hint=_classes_hint(module, named),
        )
    if missing:
        own = [member for member in vars(found) if not member.startswith("__") and not hasattr(base, member)]
        close = difflib.get_close_matches(missing[0], own, n=1, cutoff=0.5)
        raise ConfigError(
            f"{key}: {name} in {location} lacks the method{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            hint=f"did you mean {missing[0]} where it defines {close[0]}?" if close else _signature(base, missing[0]),
        )
    _require_arguments(found, named)
    return found


def _require_arguments(found: type, named: _Named) -> None:
    """Refuse a user's method that cannot be called with the arguments of the abstract method that it defines."""
    for base in found.__mro__:
        for method in getattr(base, "__abstractmethods__", ()) if base is named.base or _of_astune(base) else ():
            own = inspect.getattr_static(found, method)
            if not isinstance(own, FunctionType) or _of_astune(own):
                continue
            passed = inspect.signature(getattr(base, method)).parameters.values()
            by_name = {each.name: None for each in passed if each.kind is each.KEYWORD_ONLY}
            try:
                inspect.signature(own).bind(*[None] * (len(passed) - len(by_name)), **by_name)
            except TypeError as cause:
                line = inspect.unwrap(own).__code__.co_firstlineno
                raise ConfigError(
                    f"{named.key}: {found.__name__}.{method} (line {line} of {named.location}) does not accept the "
                    f"arguments that astune passes: {cause}",
                    hint=_signature(base, method),
                ) from None


def _of_astune(defined: type | FunctionType) -> bool:
    return defined.__module__.startswith("astune.")


def _public_home(base: type) -> str:
    """Return the package that exports the class, from which users import it."""
    package = base.__module__.rpartition(".")[0]
    exported = hasattr(sys.modules.get(package), base.__name__)
    return package if exported else base.__module__


def _signature(base: type, method: str) -> str:
    function = getattr(base, method)
    prefix = "async def" if inspect.iscoroutinefunction(function) else "def"
    return f"define `{prefix} {method}({', '.join(inspect.signature(function).parameters)})`"


def _classes_hint(module: ModuleType, named: _Named) -> str:
    """Return a hint with usable classes of this file or of files beside it, else how to write one."""
    places: list[Place] = []
    file = Path(getattr(module, "__file__", None) or "")
    if named.is_file:
        places = [Place(file, None), Place(file.parent, None)]
    elif file.suffix == ".py":
        package = named.location if file.name == "__init__.py" else named.location.rpartition(".")[0]
        places = [Place(file, named.location), Place(file.parent, package)]
    home, base = _public_home(named.base), named.base.__name__
    return named.suggestion(places) or f"write one: `class {named.name}({base})`, with `from {home} import {base}`"
