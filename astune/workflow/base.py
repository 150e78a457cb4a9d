"""Base class of users' workflows: it runs an agent once, on one task."""

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
    """Result of a workflow. `reward` is None if a judge decides; otherwise it takes precedence over the judge.

    `is_success` None counts a reward of 1 or more, the full score of most tasks, as success; set it if yours differs.
    `metrics` are numbers to be averaged over episodes. `per_target` assigns agents of a target tag their own reward;
    all others are trained on `reward`, which reports show.
    """

    reward: float | None = None
    """Reward of the episode."""
    is_success: bool | None = None
    """Whether the episode is a success."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers to be averaged over episodes, as `episodes/<name>_mean`."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Values to be recorded with the reward."""
    per_target: dict[str, float] | None = None
    """Rewards by target tag."""


class Workflow(ABC):
    """An agent program; each instance runs one episode.

        class MathAgent(Workflow):
            async def execute(self, task, proxy):
                answer = await proxy.achat([{"role": "user", "content": task.main_query}])
                proxy.update_judge_input_dictionary(final_answer=answer["content"])

    `execute` may also be an ordinary function; it then runs in its own thread.
    """

    trainable_targets: Collection[str] | None = None
    """Tags of the agents to train; None trains every agent."""

    empty_on_overflow: bool = False
    """Whether a prompt that does not fit gets an empty message instead of raising ContextOverflow."""

    def __init__(self, config: AstuneConfig) -> None:
        self.config = config

    @classmethod
    def is_async(cls) -> bool:
        """Return whether the user's code runs on the event loop rather than in its own thread."""
        return inspect.iscoroutinefunction(cls.execute)

    @abstractmethod
    def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | Awaitable[WorkflowOutput | None] | None:
        """Run the agent on `task` through `proxy`."""
