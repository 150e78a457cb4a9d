"""Exact arithmetic, and whether two mathematical answers are the same."""
