"""An agent that adds two numbers in one answer, and its tasks: the smallest example that learns.

Two solved examples stand before the question. Every fifth pair of numbers is held out.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

from astune import AstuneProxy, Message, Task, TaskReaderBase, TaskReaderConfig, Workflow

EXAMPLES: tuple[Message, ...] = (
    {"role": "user", "content": "What is 41 + 35?"},
    {"role": "assistant", "content": r"41 + 35 = \boxed{76}"},
    {"role": "user", "content": "What is 29 + 52?"},
    {"role": "assistant", "content": r"29 + 52 = \boxed{81}"},
)


class Adder(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        reply = await proxy.achat([*EXAMPLES, *proxy.init_messages])
        proxy.update_judge_input_dictionary(final_answer=reply["content"])


class Sums(TaskReaderBase):
    """Sums of two numbers from `lowest` to `highest`."""

    def __init__(self, config: TaskReaderConfig, *, lowest: int, highest: int, base_dir: Path | None = None) -> None:
        super().__init__(config, base_dir=base_dir)
        self.numbers = range(lowest, highest + 1)

    def training_tasks(self) -> list[Task]:
        return [task for task in self.tasks() if not task.metadata["is_held_out"]]

    def validation_tasks(self) -> list[Task]:
        return [task for task in self.tasks() if task.metadata["is_held_out"]]

    def tasks(self) -> list[Task]:
        return [
            Task(
                task_id=f"{a}-plus-{b}",
                main_query=f"What is {a} + {b}?",
                metadata={"answer": str(a + b), "is_held_out": (a + 2 * b) % 5 == 0},
            )
            for a, b in product(self.numbers, self.numbers)
        ]
