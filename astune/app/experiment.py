"""An experiment before its run: the validated configuration, its source, and its backbone.

It is built from a YAML file, from Python values, or from a run to be resumed. Nothing is started here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError

from astune.app.console import Console
from astune.backbone.base import Backbone, find_backbone
from astune.config import AstuneConfig, load_config
from astune.config.loader import APPWORLD_TASKS
from astune.config.saved import load_saved
from astune.config.user_files import forget_changed
from astune.launcher import config_path_of
from astune.schema import ConfigError, Faults, RunStoreError, collector_at_rest

if TYPE_CHECKING:
    from astune.backbone.parts import UserParts

Source = str | PathLike[str] | Mapping[str, Any] | AstuneConfig
"""Source of an experiment: a YAML file, its content as a mapping, or a checked configuration."""


@dataclass(frozen=True)
class Experiment:
    """An experiment before its run: `conf` is its YAML file if there is one, `run_path` the run to be resumed."""

    config: AstuneConfig
    conf: Path | None = None
    run_path: Path | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError if a run could not write the configuration into its folder."""
        try:
            self.config.model_dump_json()
        except PydanticSerializationError as cause:
            raise ConfigError(
                f"a value cannot be written into the run's folder: {cause}",
                hint="give what YAML can write: numbers, texts, lists and mappings",
            ) from cause

    @classmethod
    def of(
        cls,
        source: Source,
        overrides: Sequence[str] = (),
        values: Mapping[str, Any] | None = None,
        *,
        appworld: bool = False,
    ) -> Experiment:
        """Create the experiment of a new run. Raises ConfigError with every error of the configuration.

        Args:
            overrides: `a.b=value` strings of the command line.
            values: Python values by key; a section's value is a mapping. A class may replace its reference.
            appworld: use AppWorld's tasks if the experiment names none.
        """
        forget_changed()
        tasks = APPWORLD_TASKS if appworld else None
        path, layers = None, [plain(values or {})]
        if isinstance(source, AstuneConfig):
            source = source.model_dump()
        if isinstance(source, Mapping):
            layers.insert(0, plain(source))
        elif isinstance(source, str | PathLike):
            path = Path(source)
        else:
            raise ConfigError(
                f"an experiment is a YAML file, a mapping or an AstuneConfig, not {type(source).__name__}",
                hint="pass the file's path; `run.config` is the configuration of a run, and astune.resume continues it",
            )
        return cls(load_config(path, overrides, tasks=tasks, values=layers), path)

    @classmethod
    def resumed(
        cls,
        run: str | PathLike[str] | None,
        conf: Path | None = None,
        overrides: Sequence[str] = (),
        values: Mapping[str, Any] | None = None,
    ) -> Experiment:
        """Load the experiment of the run at `run`, or of the newest run: of the experiment in `conf`, or of all.

        Raises:
            ConfigError: it is a debug run, or the configuration is invalid.
            RunStoreError: there is no such run, or it cannot be resumed.
        """
        from astune.runs import RunDirectory, resolve_run

        forget_changed()
        layers = [plain(values or {})]
        named = None if run is None else Path(run)
        if conf is not None:
            config = load_config(conf, overrides, values=layers)
            named = named or config.record_dir / config.experiment_name
            found = resolve_run(named, record_dir=config.record_dir, prefer="training")
            experiment = cls(config, conf, found)
        else:
            directory = RunDirectory.open(resolve_run(named, prefer="training"))
            if not directory.config_path.exists():
                raise RunStoreError(
                    f"{directory.path} was ended before it had begun, so there is nothing to resume",
                    hint="start the experiment again with --conf",
                )
            config = load_saved(directory.config_path, overrides, values=layers)
            found = directory.path
            experiment = cls(config, config_path_of(directory.backup), found)
        if not experiment.backbone.trains:
            raise ConfigError("a debug run cannot be resumed", hint="start it again")
        RunDirectory.open(found).require_resumable()
        return experiment

    @property
    def base_dir(self) -> Path | None:
        """The folder of the YAML file, which references to classes start from."""
        return self.conf.parent if self.conf is not None else None

    @cached_property
    def backbone(self) -> Backbone:
        return find_backbone(self.config.backbone, self.base_dir)

    @property
    def folder(self) -> Path:
        """The folder that holds the experiment's runs."""
        if self.run_path is not None:
            return self.run_path.parent
        return self.config.record_dir.resolve() / self.config.experiment_name

    def load_parts(self, console: Console, *, with_tasks: bool = True) -> UserParts:
        """Load the user's parts and check them against the backbone's capabilities. Raises AstuneError if a part is
        invalid; several errors are reported together.

        Args:
            with_tasks: False skips the tasks, which may come from a companion.
        """
        from astune.backbone.parts import load_parts
        from astune.trackers import load_trackers

        config, faults = self.config, Faults()
        with console.status("importing the workflow, reading the tasks") as status, collector_at_rest():
            parts = faults.collect(lambda: load_parts(config, self.base_dir, status.update, with_tasks=with_tasks))
            trackers = faults.collect(lambda: load_trackers(config, self.base_dir))
            faults.collect(lambda: self.backbone.check(config))
            if faults or parts is None or trackers is None:
                raise faults.error()
            self.backbone.check_algorithm(config, parts.algorithm)
            if with_tasks:
                self.backbone.check_tasks(config, parts)
        return replace(parts, trackers=trackers)


def changes(before: AstuneConfig, after: AstuneConfig) -> list[tuple[str, object, object]]:
    """The settings in which two configurations differ: each with its key and both values; None where it has none."""
    old, new = (_flat(config.model_dump(mode="json")) for config in (before, after))
    return [
        (key, old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)
    ]


def _flat(data: Mapping[str, Any], prefix: str = "astune.") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def plain(value: Any) -> Any:
    """A Python value as YAML would have it: a path is text, an array of numpy a list and its numbers Python's, a class
    or function is the reference that names it. Raises ConfigError for a class or function that no reference can name,
    since it is defined in a function."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, type | FunctionType):
        if "." in value.__qualname__ or not value.__name__.isidentifier():
            kind = "class" if isinstance(value, type) else "function"
            raise ConfigError(
                f"the {kind} {value.__qualname__} is defined inside another object and cannot be named",
                hint="define it at the top level of a file, or of the notebook",
            )
        file = getattr(sys.modules.get("__main__"), "__file__", None) if value.__module__ == "__main__" else None
        return f"{Path(file).resolve() if file else value.__module__}->{value.__name__}"
    if isinstance(value, PathLike):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value
