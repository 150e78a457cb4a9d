"""Results of a run, read from its directory alone, whatever its age and status."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from astune.runs import (
    EpisodeReader,
    MetricsLine,
    RunDirectory,
    RunKind,
    RunStatus,
    StepSummary,
    message_text,
    total_balance,
)
from astune.runs.held_out import SUCCESS, UNFINISHED
from astune.schema import Episode, Task, TokenBalance

_MAX_DIGITS = 100
BEST_PROMPTS = "best_prompts.yaml"
"""File in the run of a search for prompts: what it found, as `astune.rollout.params`."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message for display; `written` by the model or read by it."""

    role: str
    text: str
    written: bool


@dataclass(frozen=True, slots=True)
class Transcript:
    """An episode from the question on. `left_out` counts the omitted messages before it: instructions and examples.

    With several `timelines` it shows the one in which the model wrote most.
    """

    turns: list[Turn]
    left_out: int
    reward: float | None
    success: bool | None
    timelines: int

    @property
    def after_question(self) -> list[Turn]:
        return self.turns[1:] if self.turns and not self.turns[0].written else self.turns

    @property
    def verdict(self) -> str:
        """`failed, reward 0.2`."""
        outcome = {True: "success", False: "failed", None: "no reward"}[self.success]
        return outcome if self.reward is None else f"{outcome}, reward {self.reward:g}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same validation task before and after training."""

    task_id: str
    before: Transcript
    after: Transcript

    @property
    def question(self) -> str:
        return next((turn.text for turn in self.before.turns if not turn.written), "")


@dataclass(frozen=True, slots=True)
class RunReport:
    """Results of a run. `before` and `after` are the first measurement and that of the kept model; None if not
    measured.

    If no measurement beat the initial model, `after` is the last one. Only finished steps and measurements count.
    """

    path: Path
    experiment: str
    kind: RunKind
    status: RunStatus
    message: str
    before: StepSummary | None
    after: StepSummary | None
    training: list[StepSummary]
    validation: list[StepSummary]
    last_step: int
    trained_s: float
    """Seconds of training until `after`, or until the last step if nothing was measured."""
    total_trained_s: float
    elapsed_s: float
    balance: TokenBalance
    comparisons: list[Comparison]
    model: Path | None
    """Folder of the kept model."""
    model_step: int | None
    model_superseded: bool
    """True if the kept model, and with it `after`, belongs to superseded steps."""
    superseded: list[Path]
    """Runs that hold superseded steps."""
    prompts: Path | None
    """File with the best prompts, if the run searched for some."""
    baseline: float | None
    """Score of a simple rule on the validation tasks, if they record it."""


def read_report(run: RunDirectory, *, examples: int = 3) -> RunReport:
    """Collect the contents of the final report. Raises RunStoreError if a file of the run cannot be read."""
    lines = run.metrics()
    info = run.info()
    best = run.checkpoints.best()
    superseded = best is not None and best.superseded
    model_run = RunDirectory.look_at(best.path.parents[1]) if best is not None and superseded else run
    lines_of_model = model_run.metrics()
    with run.episodes() as episodes, model_run.episodes() as episodes_of_model:
        training = finished(episodes.summaries("train"), lines)
        validation = finished(episodes.summaries("validation"), lines)
        before = validation[0] if validation else None
        later = finished(episodes_of_model.summaries("validation"), lines_of_model) if superseded else validation[1:]
        after = _kept(later, best.step if best is not None else None)
        comparisons = (
            _compare(episodes, before.step, episodes_of_model, after.step, examples) if before and after else []
        )
        measured = episodes.episodes(step=before.step, split="validation") if before else iter(())
        baseline = mean_baseline({episode.task.task_id: episode.task for episode in measured}.values())
    steps = [line for line in lines if line.kind == "train"]
    return RunReport(
        path=run.path,
        experiment=info.experiment,
        kind=info.kind,
        status=info.status,
        message=info.message,
        before=before,
        after=after,
        training=training,
        validation=validation,
        last_step=max((line.step for line in steps), default=0),
        trained_s=_trained_s(lines_of_model, after.step if after is not None else math.inf),
        total_trained_s=_trained_s(lines, math.inf),
        elapsed_s=lines[-1].elapsed_s if lines else 0.0,
        balance=total_balance(steps),
        comparisons=comparisons,
        model=best.model if best is not None else None,
        model_step=best.step if best is not None else None,
        model_superseded=superseded,
        superseded=run.superseded(),
        prompts=prompts if (prompts := run.path / BEST_PROMPTS).is_file() else None,
        baseline=baseline,
    )


def accounts(balance: TokenBalance) -> list[tuple[str, int, str]]:
    """The accounts of the sampled tokens, each with its part of them: trained, masked, dropped."""
    named = [("trained", balance.trained)]
    named += [(f"masked: {reason}", count) for reason, count in balance.masked.most_common()]
    named += [(f"dropped: {reason}", count) for reason, count in balance.dropped.most_common()]
    return [(name, count, f"{count / balance.sampled:.1%}" if balance.sampled else "-") for name, count in named]


def mean_baseline(tasks: Iterable[Task]) -> float | None:
    """Return the mean of the tasks' `metadata.baseline`, the score of a simple rule; None if one has none."""
    found: list[float] = []
    for task in tasks:
        baseline = task.metadata.get("baseline")
        if isinstance(baseline, bool) or not isinstance(baseline, int | float):
            return None
        found.append(baseline)
    return fmean(found) if found else None


def transcript(episode: Episode) -> Transcript:
    """Return the path on which the model wrote most, from the task's question on.

    Where the question is not there word for word, it begins at the last message before the path's first answer.
    """
    nodes = episode.forest.nodes
    parents = {node.parent for node in nodes}
    paths = [episode.forest.path(node.node_id) for node in nodes if node.node_id not in parents]
    path = max(paths, key=lambda path: sum(node.n_sampled for node in path), default=[])
    while path and not path[-1].sampled and any(node.sampled for node in path):
        path = path[:-1]
    first = next((index for index, node in enumerate(path) if node.sampled), len(path))
    asked = [index for index, node in enumerate(path[:first]) if node.content == episode.task.main_query]
    start = asked[-1] if asked else max(0, first - 1)
    turns = [Turn(node.role, message_text(node.content, node.tool_calls), node.sampled) for node in path[start:]]
    reward = episode.reward
    return Transcript(
        turns,
        start,
        reward.raw_reward if reward else None,
        reward.is_success if reward else None,
        len(episode.timelines),
    )


def finished(summaries: Iterable[StepSummary], lines: Iterable[MetricsLine]) -> list[StepSummary]:
    """Return the completed steps and measurements, which are those with a line of metrics; see `over_all`."""
    lines = list(lines)
    done = {(line.kind, line.step) for line in lines}
    return [each for each in over_all(summaries, lines) if (each.split, each.step) in done and each.episodes]


def over_all(summaries: Iterable[StepSummary], lines: Iterable[MetricsLine]) -> list[StepSummary]:
    """The same with all `episodes` that were to be measured: those that did not finish count as failed, as where the
    best model is chosen."""
    metrics = {line.step: line.metrics for line in lines if line.kind == "validation"}
    return [
        _with_unfinished(each, metrics.get(each.step, {})) if each.split == "validation" else each for each in summaries
    ]


def _with_unfinished(summary: StepSummary, metrics: Mapping[str, float]) -> StepSummary:
    """Runs of earlier versions have no count of what did not finish: it follows from the rate, unless that is 0."""
    success = metrics.get(SUCCESS, 0.0)
    derived = summary.successes / success - summary.episodes if success > 0 else 0.0
    unfinished = max(0, round(metrics.get(UNFINISHED, derived)))
    return summary.over_all(summary.episodes + unfinished) if unfinished else summary


def _kept(later: Sequence[StepSummary], best_step: int | None) -> StepSummary | None:
    """Return the measurement of the kept model; the last one if that is the initial model, or unknown."""
    return next((summary for summary in later if summary.step == best_step), later[-1] if later else None)


def _trained_s(lines: Sequence[MetricsLine], until: float) -> float:
    """Return the seconds of training up to a step: the trainer's own count, or the elapsed time if it has none."""
    reached = [line for line in lines if line.step <= until]
    # A measurement may be recorded after later steps, and has their seconds.
    steps = [line.metrics for line in reached if line.kind == "train"]
    if counted := [metrics["time/trained_s"] for metrics in steps if "time/trained_s" in metrics]:
        return counted[-1]
    return reached[-1].elapsed_s - lines[0].elapsed_s if reached else 0.0


def _compare(early: EpisodeReader, before: int, late: EpisodeReader, after: int, examples: int) -> list[Comparison]:
    """Compare the first tasks by id, whatever their outcome, so that nothing is cherry-picked."""
    first, last = (
        {
            row.task_id: row.episode_id
            for row in reversed(episodes.list(step=step, split="validation"))
            if row.status != "error"
        }
        for episodes, step in ((early, before), (late, after))
    )
    tasks = sorted(first.keys() & last.keys(), key=counted)[:examples]
    return [Comparison(task, transcript(early.read(first[task])), transcript(late.read(last[task]))) for task in tasks]


def counted(task_id: str) -> list[tuple[int, str]]:
    """Sort key for ids in natural order: 2 before 10."""
    parts = re.split(r"(\d+)", task_id)
    return [(int(part), "") if part.isdecimal() and len(part) <= _MAX_DIGITS else (-1, part) for part in parts]
