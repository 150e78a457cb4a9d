"""What a run has come to, read from its directory alone: any run, of any age, finished or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from astune.runs import EpisodeReader, MetricsLine, RunDirectory, RunStatus, StepSummary, message_text, total_balance
from astune.schema import Episode, TokenBalance


@dataclass(frozen=True, slots=True)
class Turn:
    """A message as a reader wants it; `written` by the model or read by it."""

    role: str
    text: str
    written: bool


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode from the question on. `left_out` counts the messages before it: instructions and examples.

    Of an episode with several `timelines` it is the one in which the model wrote most.
    """

    turns: list[Turn]
    left_out: int
    reward: float | None
    success: bool | None
    timelines: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same held-out task before and after."""

    task_id: str
    before: Transcript
    after: Transcript


@dataclass(frozen=True, slots=True)
class RunReport:
    """`before` and `after` are the first measurement and that of the kept model; None where not measured.

    Where no measurement beat the starting model, `after` is the last one.
    """

    path: Path
    experiment: str
    status: RunStatus
    message: str
    before: StepSummary | None
    after: StepSummary | None
    training: list[StepSummary]
    validation: list[StepSummary]
    last_step: int
    trained_s: float
    """Seconds of training until `after`, or until the last step where nothing was measured."""
    total_trained_s: float
    elapsed_s: float
    balance: TokenBalance
    comparisons: list[Comparison]
    model: Path | None
    """The kept model's folder."""
    model_step: int | None


def read_report(run: RunDirectory, *, examples: int = 3) -> RunReport:
    """Collect what the end-of-run report shows.

    Raises:
        RunStoreError: a file of the run cannot be read.
    """
    lines = run.metrics()
    info = run.info()
    best = run.checkpoints.best()
    with run.episodes() as episodes:
        training = episodes.summaries("train")
        validation = [summary for summary in episodes.summaries("validation") if summary.episodes]
        before = validation[0] if validation else None
        after = _kept(validation, best.step if best is not None else None)
        comparisons = _compare(episodes, before.step, after.step, examples) if before and after else []
    steps = [line for line in lines if line.kind == "train"]
    return RunReport(
        path=run.path,
        experiment=info.experiment,
        status=info.status,
        message=info.message,
        before=before,
        after=after,
        training=training,
        validation=validation,
        last_step=max((line.step for line in steps), default=0),
        trained_s=_trained_s(lines, after.step if after is not None else math.inf),
        total_trained_s=_trained_s(lines, math.inf),
        elapsed_s=lines[-1].elapsed_s if lines else 0.0,
        balance=total_balance(steps),
        comparisons=comparisons,
        model=best.model if best is not None else None,
        model_step=best.step if best is not None else None,
    )


def wilson_interval(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a rate, sound also near 0 and 1.

    Source: Wilson 1927, Journal of the American Statistical Association 22, 209-212.
    """
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    middle = rate + z * z / (2 * n)
    spread = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def transcript(episode: Episode) -> Transcript:
    """The path on which the model wrote most, from the last thing that it was asked before its first answer."""
    nodes = episode.forest.nodes
    parents = {node.parent for node in nodes}
    paths = [episode.forest.path(node.node_id) for node in nodes if node.node_id not in parents]
    path = max(paths, key=lambda path: sum(node.n_sampled for node in path), default=[])
    while path and not path[-1].sampled and any(node.sampled for node in path):
        path = path[:-1]
    first = next((index for index, node in enumerate(path) if node.sampled), len(path))
    start = max(0, first - 1)
    turns = [Turn(node.role, message_text(node.content, node.tool_calls), node.sampled) for node in path[start:]]
    reward = episode.reward
    return Transcript(
        turns,
        start,
        reward.raw_reward if reward else None,
        reward.is_success if reward else None,
        len(episode.timelines),
    )


def _kept(validation: Sequence[StepSummary], best_step: int | None) -> StepSummary | None:
    """The measurement of the kept model; the last one where that is the starting model, or is not known."""
    later = validation[1:]
    return next((summary for summary in later if summary.step == best_step), later[-1] if later else None)


def _trained_s(lines: Sequence[MetricsLine], until: float) -> float:
    """Seconds of training up to a step: the trainer's own count, or the working time where it keeps none."""
    reached = [line for line in lines if line.step <= until]
    counted = [line.metrics["time/trained_s"] for line in reached if "time/trained_s" in line.metrics]
    if counted:
        return counted[-1]
    return reached[-1].elapsed_s - lines[0].elapsed_s if reached else 0.0


def _compare(episodes: EpisodeReader, before: int, after: int, examples: int) -> list[Comparison]:
    """The first tasks by id, whatever became of them: no choice, so no flattery."""
    early, late = (
        {
            row.task_id: row.episode_id
            for row in reversed(episodes.list(step=step, split="validation"))
            if row.status != "error"
        }
        for step in (before, after)
    )
    tasks = sorted(early.keys() & late.keys())[:examples]
    return [
        Comparison(task, transcript(episodes.read(early[task])), transcript(episodes.read(late[task])))
        for task in tasks
    ]
