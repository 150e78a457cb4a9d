"""Flywheel: from users' feedback to a promoted model, by filtering the feedback and proving the model better.

evidence.py    conversations and ratings of one turn, and what the filters removed
filters.py     named rules that remove feedback: duplicates, spam, floods, disagreement, outliers, orders to a judge
instructions.py  texts that instruct a judge
decision.py    old and new compared task by task, and whether the new one is promoted
history.py     which model is promoted, and all promotions and rollbacks before
turn.py        a turn's folder: its inputs by content, and a file for each stage that is done
"""

from astune.flywheel.decision import Comparison, Decision, compare, decide
from astune.flywheel.evidence import Evidence
from astune.flywheel.filters import filtered
from astune.flywheel.history import History, Promotion
from astune.flywheel.turn import Turn, Turns

__all__ = [
    "Comparison",
    "Decision",
    "Evidence",
    "History",
    "Promotion",
    "Turn",
    "Turns",
    "compare",
    "decide",
    "filtered",
]
