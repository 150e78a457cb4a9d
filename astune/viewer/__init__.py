"""Showing runs: the log viewer. Reads what a run stored, and changes nothing."""
