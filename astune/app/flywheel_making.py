"""New tasks from a turn's failures, and rubrics from its rated answers, created by the helper model.

Both are used in training only. Models are compared on the experiment's own tasks and judge, which users cannot change.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astune.app.data import make, report_beside
from astune.app.experiment import Experiment
from astune.app.rubrics import learn
from astune.config.schema import RubricsConfig
from astune.data_generator.duplicates import Duplicates
from astune.env_service.base import text_of
from astune.flywheel import Turn
from astune.flywheel.evidence import plain
from astune.rubrics import read_examples
from astune.schema import Task, TaskReaderError, start_in_thread
from astune.task_reader.data_reader import material_of, tasks_in

LABELLED = "labelled.jsonl"
EXPANDED = "expanded.jsonl"
RUBRICS = "rubrics.yaml"
_ANY_SCORE = 1e9


@dataclass(frozen=True)
class Making:
    """The stages `expand` and `rubrics` of a turn; each is done once."""

    experiment: Experiment
    turn: Turn

    def expand(self, excluded: Collection[str]) -> dict[str, Any]:
        """Create tasks from failures that users corrected: `expanded.jsonl`.

        Args:
            excluded: queries, made `plain`, that no training task may have.

        Raises:
            HelperModelError: the helper model does not answer; the same command continues there.
        """
        return self.turn.once("expanded", lambda: self._expand(excluded))

    def rubrics(self) -> dict[str, Any]:
        """Learn rubrics from the rated answers: `rubrics.yaml`.

        Raises:
            HelperModelError: the helper model does not answer; the same command continues there.
        """
        return self.turn.once("rubrics", self._rubrics)

    def _expand(self, excluded: Collection[str]) -> dict[str, Any]:
        config, out = self.experiment.config, self.turn.folder / EXPANDED
        seeds = self._seeds()
        if not config.flywheel.expand or not seeds:
            return {"seeds": 0, "tasks": 0, "why": "no failure was corrected" if config.flywheel.expand else ""}
        path = self.turn.write("seeds.jsonl", "".join(json.dumps(each) + "\n" for each in seeds))
        settings = config.task_reader.data_generation.model_copy(
            update={"number": config.flywheel.expand, "held_out": 0.0, "env_url": ""}
        )
        config = config.model_copy(
            update={"task_reader": config.task_reader.model_copy(update={"data_generation": settings})}
        )
        try:
            material = material_of(config, [], path)
            _finished(lambda: asyncio.run(make(config, material, out, lambda *_: None)))
        except TaskReaderError as cause:
            return {"seeds": len(seeds), "tasks": 0, "why": cause.message}
        made = tasks_in(out, self.experiment.base_dir)
        kept = [task for task in made if plain(task.main_query) not in excluded]
        self.turn.write(EXPANDED, "".join(task_line(task) for task in kept))
        return {"seeds": len(seeds), "tasks": len(kept), "why": "", "report": report_beside(out).name}

    def _seeds(self) -> list[dict[str, Any]]:
        """The corrected failures as examples, one for each cluster of queries that are nearly the same."""
        path, reference = self.turn.folder / "train.jsonl", self.experiment.config.task_judge.reference_field
        if not path.stat().st_size:
            return []
        known, seeds = Duplicates(), list[dict[str, Any]]()
        for task in tasks_in(path, self.experiment.base_dir):
            asked = task.main_query or text_of(task.init_messages[-1])
            if task.metadata.get("corrected") and known.twin_of(asked) is None:
                known.add(asked)
                answer = {reference: task.metadata["answer"]}
                seeds.append({"task_id": task.task_id, "main_query": asked, "metadata": answer})
        return seeds

    def _rubrics(self) -> dict[str, Any]:
        config, labelled = self.experiment.config, self.turn.folder / LABELLED
        if not config.flywheel.rubrics or not labelled.stat().st_size:
            return {"rubrics": [], "why": "no answer was rated" if config.flywheel.rubrics else ""}
        # a user's score has whatever range the ratings' source has
        scale = {"grader_mode": "pointwise", "min_score": -_ANY_SCORE, "max_score": _ANY_SCORE}
        examples = read_examples(labelled, RubricsConfig(**scale))
        try:
            found, _ = _finished(lambda: asyncio.run(learn(config, examples, "", lambda *_: None)))
        except TaskReaderError as cause:
            return {"rubrics": [], "why": cause.message}
        found.save(self.turn.folder / RUBRICS)
        return {"rubrics": [[rubric.weight, rubric.text] for rubric in found.rubrics], "why": ""}


def task_line(task: Task) -> str:
    """The task as a line of JSONL."""
    return json.dumps(asdict(task), ensure_ascii=False, sort_keys=True) + "\n"


def _finished(work: Any) -> Any:
    """The result of `work`, which runs its own event loop; the caller may be inside another one."""
    return start_in_thread(work, name="astune-flywheel").result()


def rubrics_of(turn: Turn) -> Path | None:
    """The rubrics that the turn learned, if it did."""
    path = turn.folder / RUBRICS
    return path if path.is_file() else None
