"""Agents to learn from and to copy: each folder is one task with its workflow, tasks and configuration."""
