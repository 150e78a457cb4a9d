"""New tasks from a turn's failures, and rubrics from its rated answers, created by the helper model.

Both are used in training only. Models are compared on the experiment's own tasks and judge, which users cannot change.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from astune.app.data import make, report_beside
from astune.app.experiment import Experiment
from astune.app.rubrics import learn
from astune.config.schema import RubricsConfig
from astune.config.strict import changed
from astune.data_generator.duplicates import Duplicates
from astune.feedback.question import plain, question_in
from astune.flywheel import Turn
from astune.rubrics import read_examples
from astune.schema import Task, TaskReaderError, run_alone
from astune.task_reader.data_reader import material_of, tasks_in

LABELLED = "labelled.jsonl"
EXPANDED = "expanded.jsonl"
RUBRICS = "rubrics.yaml"
_ANY_SCORE = 1e9
_THREAD = "astune-flywheel"


def expanded(experiment: Experiment, turn: Turn, excluded: Collection[str]) -> dict[str, Any]:
    """Create tasks from failures that users corrected, where `flywheel.expand` asks for them: `expanded.jsonl`. Raises
    HelperModelError if the helper model does not answer; the same command continues there.

    Args:
        excluded: queries, made `plain`, that no training task may have.
    """
    config, out = experiment.config, turn.folder / EXPANDED
    seeds = _seeds(experiment, turn)
    if not config.flywheel.expand or not seeds:
        return {"seeds": 0, "tasks": 0, "why": "no failure was corrected" if config.flywheel.expand else ""}
    path = turn.write("seeds.jsonl", "".join(json.dumps(each) + "\n" for each in seeds))
    settings = {"number": config.flywheel.expand, "held_out": 0.0, "env_url": ""}
    config = changed(config, task_reader={"data_generation": settings})
    try:
        material = material_of(config, [], path)
        run_alone(make(config, material, out, lambda *_: None), name=_THREAD)
    except TaskReaderError as cause:
        return {"seeds": len(seeds), "tasks": 0, "why": cause.message}
    made = tasks_in(out, experiment.base_dir)
    kept = [task for task in made if plain(task.main_query) not in excluded]
    turn.write(EXPANDED, "".join(task_line(task) for task in kept))
    return {"seeds": len(seeds), "tasks": len(kept), "why": "", "report": report_beside(out).name}


def _seeds(experiment: Experiment, turn: Turn) -> list[dict[str, Any]]:
    """The corrected failures as examples, one for each cluster of queries that are nearly the same."""
    path, reference = turn.folder / "train.jsonl", experiment.config.task_judge.reference_field
    if not path.stat().st_size:
        return []
    known, seeds = Duplicates(), list[dict[str, Any]]()
    for task in tasks_in(path, experiment.base_dir):
        asked = question_in(task.init_messages)
        if task.metadata.get("corrected") and asked.strip() and known.twin_of(asked) is None:
            known.add(asked)
            answer = {reference: task.metadata["answer"]}
            seeds.append({"task_id": task.task_id, "main_query": asked, "metadata": answer})
    return seeds


def learned_rubrics(experiment: Experiment, turn: Turn) -> dict[str, Any]:
    """Learn rubrics from the rated answers, where `flywheel.rubrics` asks for them: `rubrics.yaml`. Raises
    HelperModelError if the helper model does not answer; the same command continues there."""
    config, labelled = experiment.config, turn.folder / LABELLED
    if not config.flywheel.rubrics or not labelled.stat().st_size:
        return {"rubrics": [], "why": "no answer was rated" if config.flywheel.rubrics else ""}
    # a user's score has whatever range the ratings' source has
    scale = {"grader_mode": "pointwise", "min_score": -_ANY_SCORE, "max_score": _ANY_SCORE}
    examples = read_examples(labelled, RubricsConfig(**scale))
    try:
        found, _ = run_alone(learn(config, examples, "", lambda *_: None), name=_THREAD)
    except TaskReaderError as cause:
        return {"rubrics": [], "why": cause.message}
    found.save(turn.folder / RUBRICS)
    return {"rubrics": [[rubric.weight, rubric.text] for rubric in found.rubrics], "why": ""}


def task_line(task: Task) -> str:
    """The task as a line of JSONL."""
    return json.dumps(asdict(task), ensure_ascii=False, sort_keys=True) + "\n"


def rubrics_of(turn: Turn) -> Path | None:
    """The rubrics that the turn learned, if it did."""
    path = turn.folder / RUBRICS
    return path if path.is_file() else None
