"""Backbones: each turns (configuration, tasks, workflow, judge) into a run. Import the one that you need."""
