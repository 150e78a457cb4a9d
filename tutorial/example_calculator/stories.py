"""Word problems whose operation no cue word tells: only what happens in them does.

`rules.py` solves all held-out problems of `tasks.py`, for their closing words say what to do; it solves half of these.
Held-out stories have words of their own (`wordings.py`) and the held-out numbers. `stories.yaml` trains on them beside
problems with closing words: those teach first how the calculator is used and what a sign is for.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, get_args

from astune import Task, TaskReaderBase, TaskReaderConfig, calculate, format_number
from tutorial.example_calculator.rules import cue_words
from tutorial.example_calculator.tasks import Split, different_tasks, make_tasks, numbers_of
from tutorial.example_calculator.wordings import TRAIN, VALIDATION, Kind, Wording

WORDINGS: dict[Split, Wording] = {"train": TRAIN, "validation": VALIDATION}
KINDS: tuple[Kind, ...] = get_args(Kind)
ADDITIONS: tuple[Kind, ...] = ("gain", "arrival", "whole")
CUED = 0.5
"""The part of the questions that say the operation, where a wording has such questions."""


class StoryTaskReader(TaskReaderBase):
    """Make stories instead.

    Args:
        training: how many to train on.
        validation: how many are held out.
        cued: problems of `tasks.py` beside the training stories; `metadata['kind']` tells all kinds apart.
    """

    def __init__(
        self,
        config: TaskReaderConfig,
        *,
        base_dir: Path | None = None,
        training: int = 1000,
        validation: int = 96,
        cued: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(config, base_dir=base_dir)
        self.training, self.validation, self.cued, self.seed = training, validation, cued, seed

    def training_tasks(self) -> list[Task]:
        cued = make_tasks("train", self.cued, seed=self.seed)
        for task in cued:
            task.metadata["kind"] = f"cued {task.metadata['operation']}"
        return [*make_stories("train", self.training, seed=self.seed), *cued]

    def validation_tasks(self) -> list[Task]:
        return make_stories("validation", self.validation, seed=self.seed)


def make_stories(split: Split, number: int, *, seed: int = 0, wording: Wording | None = None) -> list[Task]:
    """Return `number` different stories, of all kinds in turn; a longer list begins with the shorter.

    Args:
        split: whose numbers they have, and whose words where `wording` is None.
    """
    draw, chosen = random.Random(f"stories/{split}/{seed}"), wording or WORDINGS[split]
    return different_tasks(
        f"story-{split}-{seed}", number, lambda index: _story(split, chosen, draw, KINDS[index % len(KINDS)])
    )


def _story(split: Split, wording: Wording, draw: random.Random, kind: Kind) -> dict[str, Any]:
    b, a = sorted(draw.sample(numbers_of(split, 99), 2))
    name, other = draw.sample(wording.names, 2)
    one, two = draw.sample(draw.choice(wording.sorts), 2)
    crowd = kind in ("arrival", "departure")
    words = {"a": a, "b": b, "name": name, "other": other, "one": one, "two": two, "place": draw.choice(wording.places)}
    words["things"] = draw.choice(wording.crowds if crowd else wording.things)
    event = draw.choice(wording.events[kind])
    sentences = [event]
    if kind not in ("whole", "part"):
        openings, questions = (wording.there, wording.there_now) if crowd else (wording.owned, wording.owned_now)
        if kind in wording.cued and draw.random() < CUED:
            questions = wording.cued[kind]
        sentences = [draw.choice(openings), draw.choice(wording.moments) + event, draw.choice(questions)]
    written = [sentence.format(**words) for sentence in sentences]
    text = " ".join(sentence[:1].upper() + sentence[1:] for sentence in written)
    expression = f"{a}{'+' if kind in ADDITIONS else '-'}{b}"
    return {
        "main_query": text,
        "metadata": {
            "answer": format_number(calculate(expression)),
            "expression": expression,
            "kind": kind,
            "template": event,
            "baseline": float(cue_words(text) == ("-" in expression)),
        },
    }
