"""Rubrics: short statements about answers, by which a helper model grades them.

rubric.py      `Rubrics` and their YAML file
labelled.py    answers with labels, from JSONL
grading.py     which rubrics an answer meets
learning.py    rubrics from labelled answers, or from a description
selection.py   the small complementary set of them
agreement.py   how well grades agree with labels
"""

from astune.rubrics.agreement import Agreement, agreement, comparable
from astune.rubrics.labelled import Example, read_examples
from astune.rubrics.learning import RubricLearner
from astune.rubrics.rubric import Rubrics

__all__ = [
    "Agreement",
    "Example",
    "RubricLearner",
    "Rubrics",
    "agreement",
    "comparable",
    "read_examples",
]
