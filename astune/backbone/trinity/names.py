"""Names that both sides of the Trinity backbone know."""

TASKS, HELD_OUT = "tasks", "held_out"
"""The task sets, as Trinity's files and in its batches."""
