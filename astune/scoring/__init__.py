"""Exact arithmetic, and whether two mathematical answers are the same."""

from astune.scoring.arithmetic import calculate, format_number
from astune.scoring.math_answer import after_marker, last_boxed, same_answer

__all__ = ["after_marker", "calculate", "format_number", "last_boxed", "same_answer"]
