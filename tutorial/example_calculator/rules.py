"""Success rates of rules without a language model on the same problems.

A trained model has to be read beside them. Each rule says whether the second number is added or taken away; the
calculator does the rest, so a right sign is a success.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from astune import Task

Rule = Callable[[str], bool]
"""Whether a problem's text asks to take away."""

CUES = re.compile(r"\b(left|still|lost|sold|gave|spent|away|out|off|home|others?|some)\b")


def cue_words(text: str) -> bool:
    """Take away where the text has one of `CUES`, chosen by hand for the training problems."""
    return CUES.search(text) is not None


def counted_words(training: Sequence[Task]) -> Rule:
    """Return the rule of naive Bayes: a word counts by how often it stood in training problems of either operation."""
    counts = {False: Counter[str](), True: Counter[str]()}
    for task in training:
        counts[takes_away(task)].update(set(_words(task.main_query)))

    def weight(word: str) -> float:
        return math.log((counts[True][word] + 1) / (counts[False][word] + 1))

    return lambda text: sum(weight(word) for word in set(_words(text))) > 0


def part_solved(tasks: Sequence[Task], rule: Rule) -> float:
    """Return the part of the problems in which the rule names the operation."""
    return sum(rule(task.main_query) == takes_away(task) for task in tasks) / len(tasks)


def takes_away(task: Task) -> bool:
    return "-" in task.metadata["expression"]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())
