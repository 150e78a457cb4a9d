"""What a user writes: a class that runs their agent once, on one task."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from astune.config.schema import AstuneConfig
from astune.schema import Task

if TYPE_CHECKING:
    from astune.workflow.proxy import AstuneProxy


@dataclass
class WorkflowOutput:
    """What a workflow may say of its episode. `reward` is None where a judge decides; it wins over the judge otherwise.

    `is_success` None counts a reward of 1 or more, the full score of most tasks, as success; pass it where yours
    differs. `metrics` are numbers to be averaged over episodes. `per_target` gives the agents of a target tag another
    reward than `reward`, which a report shows and which all others are trained on.
    """

    reward: float | None = None
    is_success: bool | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    per_target: dict[str, float] | None = None


class Workflow(ABC):
    """An agent program; one instance runs one episode.

        class MathAgent(Workflow):
            async def execute(self, task, proxy):
                answer = await proxy.achat([{"role": "user", "content": task.main_query}])
                proxy.update_judge_input_dictionary(final_answer=answer["content"])

    `execute` may also be an ordinary function; it then runs in a thread of its own.
    """

    trainable_targets: Collection[str] | None = None
    """Tags of the agents to train; None trains every agent."""

    empty_on_overflow: bool = False
    """Whether a prompt that does not fit is answered with an empty message instead of raising ContextOverflow."""

    def __init__(self, config: AstuneConfig) -> None:
        self.config = config

    @classmethod
    def is_async(cls) -> bool:
        """Whether the user's code runs on the event loop, or in a thread of its own."""
        return inspect.iscoroutinefunction(cls.execute)

    @abstractmethod
    def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | Awaitable[WorkflowOutput | None] | None:
        """Run the agent on `task` through `proxy`."""
