"""Measurements against real peers. Each prints a ratio against something measured in the same run."""
