"""A model trained on the calculator tutorial, on problems that its run did not measure, beside the untrained one.

Sets: new problems in the sentences of training; new problems in held-out sentences, whose closing words are those of
training; stories, without such words, in held-out sentences and in another author's; rows of GSM8K with one
calculation, where the data set is beside the checkout or at ASTUNE_GSM8K. Intervals are for other templates like
these: two problems of one sentence are no independent trials.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from astune.backbone.local import evaluate
from astune.backbone.parts import load_parts
from astune.rollout import NullObserver
from astune.runs.interval import OfTasks
from astune.schema import Episode, Task
from astune.scoring.math_answer import after_marker
from benchmarks.other_wordings import OTHERS
from benchmarks.own_runs import resolved
from benchmarks.report import ROOT, markdown_table
from tutorial.example_calculator.rules import counted_words, cue_words, part_solved
from tutorial.example_calculator.stories import make_stories
from tutorial.example_calculator.tasks import make_tasks

FRESH, HELD_OUT, STORIES, OTHER_STORIES, GSM8K, GSM8K_SIGNS = (
    "fresh problems in sentences of training",
    "fresh problems in held-out sentences",
    "held-out stories, without cue words",
    "stories in another author's sentences",
    "GSM8K's test rows of one calculation",
    "those of them that add or subtract two numbers",
)
GENERATED = (FRESH, HELD_OUT, STORIES, OTHER_STORIES)
NUMBER = 400

Counts = dict[str, tuple[int, int]]
"""By template: successes, problems."""


def measure(conf: Path, model: str) -> dict[str, Counts]:
    """Run the tutorial's agent once on each problem of every set."""
    sets = task_sets()
    tasks = [task for name in (*GENERATED, GSM8K) for task in sets.get(name, [])]
    config = resolved(conf, [f"astune.model.path={model}", "astune.trainer.validation.max_tasks=null"])
    parts = replace(load_parts(config, conf.parent), validation_tasks=tasks)
    groups = asyncio.run(evaluate(config, parts, NullObserver()))
    right = {group.task.task_id: _succeeded(group.episodes) for group in groups if group.dropped is None}
    return {name: _by_template(tasks, right) for name, tasks in sets.items()}


def task_sets() -> dict[str, list[Task]]:
    sets = {
        FRESH: _unseen(make_tasks("train", 2 * NUMBER, seed=1), make_tasks("train", 1200)),
        HELD_OUT: _unseen(make_tasks("validation", 2 * NUMBER, seed=1), make_tasks("validation", 96)),
        STORIES: _unseen(make_stories("validation", 2 * NUMBER, seed=1), make_stories("validation", 96)),
        OTHER_STORIES: make_stories("validation", NUMBER, seed=2, wording=OTHERS),
    }
    if rows := gsm8k_rows():
        sets[GSM8K] = rows
        sets[GSM8K_SIGNS] = [row for row in rows if re.fullmatch(r"[\d.]+[-+][\d.]+", row.metadata["template"])]
    return sets


def _unseen(made: Sequence[Task], used: Sequence[Task]) -> list[Task]:
    """Return NUMBER problems of `made` that are not among the `used` ones of a run; kinds stay balanced."""
    seen = {task.main_query for task in used}
    return [task for task in made if task.main_query not in seen][:NUMBER]


def gsm8k_rows() -> list[Task]:
    """Return the test rows whose solution marks exactly one calculation, `<<20-4=16>>`; none without the data set."""
    folder = Path(os.environ.get("ASTUNE_GSM8K", ROOT.parent / "shared" / "data" / "gsm8k"))
    if not (folder / "test.jsonl").is_file():
        return []
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    marked = [(row, re.findall(r"<<(.*?)=", row["answer"])) for row in rows]
    return [
        Task(
            task_id=f"gsm8k-{index}",
            main_query=row["question"],
            env_type="calculator",
            metadata={"answer": after_marker(row["answer"]), "template": calculations[0], "kind": "GSM8K"},
        )
        for index, (row, calculations) in enumerate(marked)
        if len(calculations) == 1
    ]


def rules() -> dict[str, dict[str, float]]:
    """Return what the tutorial's rules solve of the generated sets."""
    sets = task_sets()
    known = {
        "a rule of cue words": cue_words,
        "all words, counted in the training problems": counted_words(make_tasks("train", 1000)),
        "all words, counted in the training stories": counted_words(make_stories("train", 1000)),
    }
    return {rule: {name: part_solved(sets[name], known[rule]) for name in GENERATED} for rule in known}


def success(counts: Counts) -> tuple[float, float, float]:
    """Return the part solved with its 95 % interval for other templates like these."""
    by_template = OfTasks.of(counts.values())
    return by_template.successes / max(1, by_template.episodes), *by_template.interval


def tables(before: dict[str, Counts], after: dict[str, dict[str, Counts]]) -> str:
    """Return the table of the sets, and of the templates of those in held-out words; `after` by seed."""
    seeds = sorted(after)
    names = [name for name in before if all(name in after[seed] for seed in seeds)]  # an older run measured fewer
    by_seed = [f"seed {seed}" for seed in seeds]
    rows = [
        (
            name,
            sum(n for _, n in before[name].values()),
            f"{success(before[name])[0]:.3f}",
            *(_interval(after[seed][name]) for seed in seeds),
        )
        for name in names
    ]
    parts = [markdown_table(("problems", "number", "untrained", *by_seed), rows)]
    parts.append("Intervals are 95 %, for other templates like these.")
    for name in (name for name in names if name in GENERATED and name != FRESH):
        hardest = sorted(
            before[name], key=lambda template: sum(after[seed][name].get(template, (0, 0))[0] for seed in seeds)
        )
        each = [
            (f"`{shown}`", *("{} of {}".format(*after[seed][name].get(shown, (0, 0))) for seed in seeds))
            for shown in hardest
        ]
        parts += [f"By template, {name}:", markdown_table(("template", *by_seed), each)]
    return "\n\n".join(parts)


def _interval(counts: Counts) -> str:
    rate, low, high = success(counts)
    return f"{rate:.3f} ({low:.2f} to {high:.2f})"


def _by_template(tasks: Sequence[Task], right: dict[str, bool]) -> Counts:
    found: dict[str, list[bool]] = defaultdict(list)
    for task in tasks:
        if task.task_id in right:
            found[task.metadata["template"]].append(right[task.task_id])
    return {template: (sum(outcomes), len(outcomes)) for template, outcomes in found.items()}


def _succeeded(episodes: Sequence[Episode]) -> bool:
    return all(episode.reward is not None and bool(episode.reward.is_success) for episode in episodes)
