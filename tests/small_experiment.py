"""A small experiment, for runs whose result is not looked at: an agent that says something, rewarded by chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

AGENT = """
from astune import Task, TaskReaderBase, Workflow, WorkflowOutput


class Agent(Workflow):
    async def execute(self, task, proxy):
        reply = await proxy.achat(proxy.init_messages)
        return WorkflowOutput(reward=float(len(reply["content"]) % 2))


class Tasks(TaskReaderBase):
    def training_tasks(self):
        return [Task(str(number), f"Say {number}") for number in range(8)]

    def validation_tasks(self):
        return [Task(f"held out {number}", f"Say {number}0") for number in range(1, 3)]
"""


def small_experiment(folder: Path, model: Path, *, file: str = "agent.py", more: str = "") -> dict[str, Any]:
    """The values of an experiment of two steps.

    Args:
        folder: the working directory, into which its `file` is written.
        more: further code of that file, which may define `Agent` and `Tasks` anew.
    """
    (folder / file).write_text(AGENT + more)
    return {
        "experiment_name": "small",
        "model": {"path": model},
        "rollout": {
            "workflow": f"{file}->Agent",
            "num_repeat": 2,
            "max_response_length_in_one_turn": 8,
            "max_model_len": 128,
        },
        "task_reader": {"type": f"{file}->Tasks"},
        "trainer": {"total_steps": 2, "tasks_per_step": 2},
    }
