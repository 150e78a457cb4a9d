"""`astune replay RUN`: recompute judge, merging and advantages on stored episodes, and show what differs."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.progress import Progress
from rich.table import Table

from astune.app.console import Console
from astune.runs import EpisodeReader, RunDirectory, outermost_run, resolve_run
from astune.schema import Advantage, Episode, EpisodeGroup, RunStoreError, Split

if TYPE_CHECKING:
    from astune.algorithm import Algorithm

_SHOWN = 20
"""Differences that are printed; the rest is counted."""


@dataclass
class _Outcome:
    """The outcome of one step, before and now."""

    episodes: int = 0
    reward: list[tuple[float, float]] = field(default_factory=list)
    timelines: tuple[int, int] = (0, 0)
    trained: tuple[int, int] = (0, 0)


def replay_run(run: str, overrides: Sequence[str], *, trust_code: bool) -> int:
    """Print rewards and advantages of the run's episodes as computed now; returns 0 whatever they are. With
    `trust_code`, code inside of the run's folder is imported without asking."""
    from astune.algorithm import load_algorithm
    from astune.config.code_of_runs import no_code_of
    from astune.config.saved import load_saved
    from astune.engine.model_files import resolve_model
    from astune.launcher import config_path_of
    from astune.renderers import load_renderer
    from astune.renderers.text_renderer import renderer_of
    from astune.rollout.again import again
    from astune.task_judge import load_judge

    directory = RunDirectory.open(resolve_run(run))
    config = load_saved(directory.config_path, overrides)
    written = config_path_of(directory.backup)
    base_dir = written.parent if written is not None else None
    console = Console()
    with no_code_of(outermost_run(directory.path), lambda file: trust_code or _allowed(file, console), hint=_READ_IT):
        judge, algorithm = load_judge(config, base_dir=base_dir), load_algorithm(config, base_dir)
    renderer = load_renderer(resolve_model(config.model.path))
    outcomes: defaultdict[tuple[Split, int], _Outcome] = defaultdict(_Outcome)
    kept: Counter[str] = Counter()
    differences: list[str] = []
    with (
        directory.episodes() as reader,
        Progress(console=console, transient=True) as progress,
        asyncio.Runner() as runner,  # one loop for all: judges keep connections
    ):
        bar = progress.add_task("episodes", total=reader.count())
        for then in steps_of(reader):
            now = [EpisodeGroup(group.task, []) for group in then]
            for group, replayed in zip(then, now, strict=True):
                for episode in group.episodes:
                    result = runner.run(again(episode, renderer_of(episode.forest, renderer), judge, config))
                    replayed.episodes.append(result.episode)
                    if result.kept is not None:
                        kept[result.kept] += 1
                    progress.advance(bar)
            compared = (_members(then), _members(now), _advantages(then, algorithm), _advantages(now, algorithm))
            for old, new, was, is_now in zip(*compared, strict=True):
                _count(outcomes[old.split, old.step], old, new)
                differences += _differences(old, new, was, is_now)
    if not outcomes:
        raise _nothing_judged(directory)
    console.print(_table(outcomes))
    for line in differences[:_SHOWN]:
        console.say(line)
    if len(differences) > _SHOWN:
        console.say(f"... and {len(differences) - _SHOWN:,} more")
    for reason, count in kept.most_common():
        console.say(f"{count:,} rewards were kept: {reason}")
    episodes = sum(outcome.episodes for outcome in outcomes.values())
    console.say(f"{episodes:,} episodes again: {len(differences):,} come out differently")
    return 0


_READ_IT = "read it first: imported, it can do whatever you can. Then allow it with --trust-code"


def _allowed(file: Path, console: Console) -> bool:
    """Ask on the terminal; without one, no."""
    if not (console.is_terminal and sys.stdin.isatty()):
        return False
    console.say(f"{file} comes with the run itself. Imported, it can do whatever you can.")
    try:
        return console.input("Import it? (y/N) ", markup=False).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _nothing_judged(run: RunDirectory) -> RunStoreError:
    status = run.info().status
    if status == "running":
        return RunStoreError(f"the run {run.path} has no judged episodes yet")
    return RunStoreError(
        f"the run {run.path} has no judged episodes: it is {status}, and those that it has will never be judged",
        hint="run them again; `astune view` shows what was recorded",
    )


def steps_of(reader: EpisodeReader) -> Iterator[list[EpisodeGroup]]:
    """The judged episodes of each step and split of a run, by task, in the order of the store."""
    steps: dict[tuple[Split, int], dict[str, list[str]]] = {}
    for row in reader.list():
        if row.status != "error":
            steps.setdefault((row.split, row.step), {}).setdefault(row.task_id, []).append(row.episode_id)
    for members in steps.values():
        groups = [[reader.read(episode_id) for episode_id in episode_ids] for episode_ids in members.values()]
        yield [EpisodeGroup(group[0].task, sorted(group, key=lambda episode: episode.repeat)) for group in groups]


def _members(groups: Sequence[EpisodeGroup]) -> list[Episode]:
    return [episode for group in groups for episode in group.episodes]


def _advantages(groups: Sequence[EpisodeGroup], algorithm: Algorithm) -> list[Advantage]:
    """The advantage of each episode of a step: some algorithms compare it with those of other tasks. An incomplete
    group, which is not trained, is compared with none."""
    from astune.algorithm import advantages_of

    size = max(len(group.episodes) for group in groups)
    trained = iter(advantages_of(algorithm, [group for group in groups if len(group.episodes) == size]))
    rows = (next(trained) if len(each.episodes) == size else advantages_of(algorithm, [each])[0] for each in groups)
    return [advantage for row in rows for advantage in row]


def _count(outcome: _Outcome, old: Episode, new: Episode) -> None:
    outcome.episodes += 1
    outcome.reward.append((old.raw_reward, new.raw_reward))
    outcome.timelines = _added(outcome.timelines, len(old.timelines), len(new.timelines))
    outcome.trained = _added(outcome.trained, _trained(old), _trained(new))


def _added(pair: tuple[int, int], old: int, new: int) -> tuple[int, int]:
    return pair[0] + old, pair[1] + new


def _trained(episode: Episode) -> int:
    return sum(timeline.n_trained for timeline in episode.timelines)


def _differences(old: Episode, new: Episode, was: Advantage, now: Advantage) -> Iterator[str]:
    """A line for an episode that comes out differently."""
    pairs = {
        "reward": (f"{old.raw_reward:g}", f"{new.raw_reward:g}"),
        "status": (old.status, new.status),
        "timelines": (str(len(old.timelines)), str(len(new.timelines))),
        "trained tokens": (str(_trained(old)), str(_trained(new))),
        "advantage": (_shown(was), _shown(now)),
    }
    changed = [f"{name} {before} -> {after}" for name, (before, after) in pairs.items() if before != after]
    if changed:
        yield f"{old.episode_id}: {', '.join(changed)}"


def _shown(advantage: Advantage) -> str:
    if isinstance(advantage, dict):
        return "[" + " ".join(f"{value:.2f}" for value in advantage.values()) + "]"
    return f"{advantage:.2f}"


def _table(outcomes: dict[tuple[Split, int], _Outcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("step")
    for name in ("episodes", "reward", "timelines", "trained tokens"):
        table.add_column(name, justify="right")
    for (split, step), outcome in sorted(outcomes.items(), key=lambda item: (item[0][1], item[0][0])):
        before, now = (sum(column) / outcome.episodes for column in zip(*outcome.reward, strict=True))
        table.add_row(
            f"{split} {step}",
            str(outcome.episodes),
            _pair(f"{before:.3f}", f"{now:.3f}"),
            _pair(*(f"{count:,}" for count in outcome.timelines)),
            _pair(*(f"{count:,}" for count in outcome.trained)),
        )
    return table


def _pair(before: str, now: str) -> str:
    return before if before == now else f"{before} -> {now}"
