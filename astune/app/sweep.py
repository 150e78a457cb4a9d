"""A sweep: one experiment trained with several settings and seeds, each as an ordinary run of one experiment folder.

    --over trainer.optim.lr=1e-5,5e-5 --seeds 3    is six trials: each value with the seeds 0, 1 and 2

A trial knows its run by the configuration in the run's folder, which is the trial's own to the last key. So nothing is
kept beside the runs: after a kill the same command finds finished runs, resumes the others and starts what is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Literal

import yaml

from astune.app.experiment import Experiment
from astune.config import AstuneConfig, load_config
from astune.config.keys import canonical
from astune.config.saved import load_saved
from astune.launcher.health import why_not_answering
from astune.processes.guarded import GuardedProcess
from astune.runs import HeldOut, RunDirectory, RunInfo, Stamp, runs_below, store_errors
from astune.schema import AstuneError, ConfigError, RunStoreError, imported

_ENDS_S = 60.0
"""Seconds that a run has for its checkpoint when the sweep is interrupted."""
_LOOK_S = 2.0
_ANSWERS_S = 10.0
"""Seconds that a Ray head has to accept a connection."""
_PLACES = frozenset({"experiment_name", "record_dir"})
"""Keys that decide where the runs of a sweep are."""
_BEFORE_QUOTES = frozenset(["", "[", "{", ",", ":"])
"""Characters after which a value begins: none, or one of YAML's lists and mappings."""
State = Literal["missing", "unfinished", "finished", "running"]
Setting = tuple[str, str]


@dataclass(frozen=True)
class Trial:
    """A run of a sweep. `overrides` are all of the command line; `settings` and `seed` are those of this run."""

    conf: Path
    config: AstuneConfig
    settings: tuple[Setting, ...]
    seed: int
    overrides: tuple[str, ...] = field(repr=False)
    run: Path | None = None
    state: State = "missing"

    @property
    def name(self) -> str:
        return " ".join([*(f"{key}={value}" for key, value in self.settings), f"seed={self.seed}"])

    @property
    def group(self) -> str:
        """Settings shared with the trials of other seeds."""
        return " ".join(f"{key}={value}" for key, value in self.settings) or "as configured"

    @property
    def folder(self) -> Path:
        """The folder of all runs of the sweep."""
        return self.config.record_dir.resolve() / self.config.experiment_name

    @property
    def command(self) -> list[str]:
        if self.run is not None:
            return [sys.executable, "-m", "astune", "--resume", str(self.run)]
        given = [part for override in self.overrides for part in ("--set", override)]
        return [sys.executable, "-m", "astune", "--conf", str(self.conf), *given]

    @property
    def is_current(self) -> bool:
        """Return whether the experiment's file still has the settings of the sweep's beginning."""
        try:
            return load_config(self.conf, self.overrides) == self.config
        except ConfigError:
            return False

    def held_out(self) -> HeldOut | None:
        """Return its validation scores so far."""
        return HeldOut.of(RunDirectory.look_at(self.run).metrics()) if self.run is not None else None


def trials_of(conf: Path, over: Sequence[str], seeds: int, overrides: Sequence[str]) -> list[Trial]:
    """Return every trial with its progress so far. Raises ConfigError if a key or value is wrong, or names nothing to
    sweep over, or two trials would be the same run.

    Args:
        over: `KEY=VALUE,VALUE` texts; each key is swept over its values, several keys over all combinations.
        seeds: trials of each combination; their seeds count up from the experiment's own.
        overrides: `KEY=VALUE` texts for all trials.
    """
    swept = [_swept(text) for text in over]
    keys = [key for key, _ in swept]
    _require_free(keys, seeds, overrides)
    base = Experiment.of(conf, overrides).config
    name = f"experiment_name={json.dumps(f'{base.experiment_name}-sweep', ensure_ascii=False)}"
    trials: list[Trial] = []
    for values in product(*(values for _, values in swept)):
        settings = tuple(zip(keys, values, strict=True))
        own = [f"{key}={value}" for key, value in settings]
        first = _load_swept(conf, [*overrides, *own, name], own)
        for seed in range(first.seed, first.seed + seeds):
            given = (*overrides, *own, name, f"seed={seed}")
            settings_shown = tuple(each for each in settings if each[0] != "seed")
            trials.append(Trial(conf, load_config(conf, given), settings_shown, seed, given))
    _require_distinct(trials)
    return found(trials)


def found(trials: Sequence[Trial]) -> list[Trial]:
    """The same trials, each with its run where it was begun: the newest run that has its configuration."""
    runs = [*_runs_in(trials[0].folder)]
    return [_as_found(trial, runs) for trial in trials]


def run_trial(trial: Trial, on_look: Callable[[], None] = lambda: None) -> int:
    """Train one trial in a process of its own, which does not outlive this one; returns its exit status.

    Where another process still trains it, as one does that saves its checkpoint, that is waited for first. A run that
    would have another configuration than the trial is not begun.

    Args:
        on_look: called every few seconds.
    """
    [trial] = found([trial])  # it may have waited long for its turn, and another sweep may have begun it
    while trial.state == "running":
        on_look()
        time.sleep(_LOOK_S)
        [trial] = found([trial])
    if trial.state == "finished":
        return 0
    if trial.run is None and not trial.is_current:
        return 1
    log = log_of(trial)
    with store_errors(f"creating {log.parent}"):
        log.parent.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()
    with GuardedProcess(f"trial {trial.name}", trial.command, log, grace_s=_ENDS_S) as process:
        process.on_death(ended.set)
        while not ended.wait(_LOOK_S):
            on_look()
        return process.status if process.status is not None else 1


def on_ray(trials: Sequence[Trial], *, cpus: int, gpus: int) -> Iterator[tuple[Trial, int]]:
    """Run trials on the Ray cluster that is there, as many at once as its scheduler has room for; as they end.

    Every machine of the cluster needs this environment, and the working directory at the same path. Raises ConfigError
    if Ray is not installed, or there is no cluster.
    """
    ray = imported("ray", needed_by="--ray", error=ConfigError, hint="pip install ray")
    folder = str(Path.cwd())

    def work(trial: Trial) -> int:
        os.chdir(folder)
        return run_trial(trial)

    try:
        address = os.environ.get("RAY_ADDRESS", "auto")
        _require_listener(address)
        ray.init(address=address, log_to_driver=False)
    except (OSError, RuntimeError) as cause:
        hint = "start one with `ray start --head`, or name it in RAY_ADDRESS"
        raise ConfigError(f"there is no Ray cluster: {cause}", hint=hint) from cause
    try:
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(work)
        waiting = {remote.remote(trial): trial for trial in trials}
        while waiting:
            [done], _ = ray.wait([*waiting], num_returns=1)
            trial = waiting.pop(done)
            try:
                yield trial, ray.get(done)
            except ray.exceptions.RayError:  # its machine is gone: the same command resumes it elsewhere
                yield trial, 1
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    """Connect to `host:port` once; Ray itself retries for minutes if nothing listens. Raises ConnectionError if nothing
    listens there."""
    place = address.rpartition("://")[2]
    if ":" not in place:  # "auto" and "local" are found, or not, at once
        return
    if (why := why_not_answering(f"tcp://{place}", _ANSWERS_S)) is not None:
        raise ConnectionError(f"{address} does not answer ({why})")


def log_of(trial: Trial) -> Path:
    """The file that holds what a trial printed, over all of its starts."""
    name = "".join(letter if letter.isalnum() or letter in "=.-" else "_" for letter in trial.name)
    return trial.folder / "logs" / f"{name[:180]}-{hashlib.sha256(trial.name.encode()).hexdigest()[:8]}.log"


def _require_free(keys: Sequence[str], seeds: int, overrides: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: a key is set in two ways, or decides where the runs of the sweep are.
    """
    if repeated := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigError(f"--over names {repeated} twice", hint="give all of its values in one --over")
    if seeds > 1 and "seed" in keys:
        raise ConfigError("--over seed and --seeds sweep over the same key", hint="leave one of them out")
    fixed = {canonical(override.partition("=")[0].strip()) for override in overrides}
    if both := next((key for key in keys if key in fixed), None):
        raise ConfigError(f"--over {both} and --set {both} set the same key", hint="leave one of them out")
    if place := next((key for key in keys if key in _PLACES), None):
        raise ConfigError(
            f"--over {place} would spread one sweep over several folders",
            hint=f"start a sweep for each value with --set {place}=VALUE",
        )


def _load_swept(conf: Path, overrides: Sequence[str], own: Sequence[str]) -> AstuneConfig:
    """Load the first of a setting's trials; an error names the flag that its `own` overrides were written with."""
    try:
        return load_config(conf, overrides)
    except ConfigError as cause:
        message = cause.message
        for override in own:
            message = message.replace(f"--set {override}", f"--over {override}")
        raise ConfigError(message, hint=cause.hint) from None


def _require_distinct(trials: Sequence[Trial]) -> None:
    seen: dict[str, Trial] = {}
    for trial in trials:
        other = seen.setdefault(trial.config.model_dump_json(), trial)
        if other is not trial:
            raise ConfigError(
                f"the trials {other.name!r} and {trial.name!r} have the same configuration",
                hint="write each value of --over once, in one spelling",
            )


def _swept(text: str) -> tuple[str, list[str]]:
    """`lr=1e-5,5e-5` is the key `lr` with two values; commas within brackets and quotation marks part nothing.

    As in YAML, a quotation mark begins a quoted text only where a value begins: `it's` is a word.
    """
    key, is_given, values = text.partition("=")
    parts, depth, quoted = [""], 0, ""
    for letter in values:
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "\"'" and parts[-1].rstrip()[-1:] in _BEFORE_QUOTES:
            quoted = letter
        depth += (letter in "[{") - (letter in "]}") if not quoted else 0
        if letter == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    parts = [part.strip() for part in parts]
    if not key.strip() or not is_given or "" in parts:
        raise ConfigError(f"--over {text!r} names no values", hint="write --over trainer.optim.lr=1e-5,5e-5")
    if len(set(parts)) < len(parts):
        raise ConfigError(f"--over {text!r} names a value twice", hint="name each value once; --seeds repeats them")
    return canonical(key.strip()), parts


def _runs_in(folder: Path) -> Iterator[tuple[RunDirectory, RunInfo, AstuneConfig]]:
    """Runs of the sweep, newest first; of one whose configuration was not written, or cannot be read, nothing began."""
    for path in reversed(runs_below(folder)) if folder.is_dir() else ():
        run = RunDirectory.look_at(path)
        try:
            yield run, run.info(), _config_at(run.config_path, Stamp.of(run.config_path))
        except (AstuneError, OSError, yaml.YAMLError):
            continue


@lru_cache(4096)
def _config_at(path: Path, _: Stamp) -> AstuneConfig:
    """Read each configuration once: a sweep looks for its runs every few seconds."""
    return load_saved(path)


def _as_found(trial: Trial, runs: Sequence[tuple[RunDirectory, RunInfo, AstuneConfig]]) -> Trial:
    for run, info, config in runs:
        if config != trial.config:
            continue
        if info.status in ("running", "finished"):
            return replace(trial, run=run.path, state=info.status)
        try:
            run.require_resumable()
        except RunStoreError:  # what it needs was removed: it starts over
            continue
        return replace(trial, run=run.path, state="unfinished")
    return trial
