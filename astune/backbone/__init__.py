"""Backbones: each turns (configuration, tasks, workflow, judge) into a run."""
