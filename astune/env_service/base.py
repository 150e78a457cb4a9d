"""Interface of an environment: one instance, for one task, that responds to an agent's messages.

An environment is independent of agents, models and training, and of whether it runs in this process or behind a
service.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from astune.schema import EnvError, Message, Task


@dataclass(frozen=True, slots=True)
class EnvState:
    """First observation of the agent."""

    state: list[Message]
    """Messages that the conversation begins with."""
    info: dict[str, Any] = field(default_factory=dict)
    """Further information, which the workflow finds in `proxy.env_info`, such as tools to offer."""


@dataclass(frozen=True, slots=True)
class EnvStep:
    """Result of one action: messages for the agent, a reward, and whether the episode is over."""

    state: list[Message]
    """Messages for the agent."""
    reward: float
    """Reward of this step, which the workflow receives; the judge decides on the episode's reward."""
    is_terminated: bool
    """Whether the episode is over."""
    info: dict[str, Any] = field(default_factory=dict)
    """Further information for the workflow."""


class Environment(ABC):
    """An instance for one episode. `step` is called until it returns `is_terminated`, then `evaluate`, then `close`."""

    quick: ClassVar[bool] = False
    """True if every method returns within a millisecond: it is then called on the event loop, without a thread."""

    fresh_process: ClassVar[bool] = False
    """True if an instance leaves state in its process: a service then starts a process for each instance. Otherwise a
    process that closed its instance without failure is reused."""

    forks: ClassVar[bool] = False
    """True if `prepare` leaves nothing open that a fork would break, such as threads and connections. A service then
    prepares one process and forks the others from it: they start in milliseconds, and share its memory."""

    variables: ClassVar[frozenset[str] | None] = None
    """Environment variables of a service's processes; None: all. For environments that run untrusted code: a variable
    that a process removes stays in its memory."""

    variant: ClassVar[str] = ""
    """Part of a name after the colon, as in `reasoning_gym:leg_counting`; set on the class that is instantiated."""

    example_variant: ClassVar[str] = ""
    """An existing variant, for errors; empty if names have no variants."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task = task
        self.seed = seed

    @abstractmethod
    def get_init_state(self) -> EnvState: ...

    @abstractmethod
    def step(self, action: Message) -> EnvStep:
        """Take the agent's message; a message that makes no sense is answered, not raised."""

    @abstractmethod
    def evaluate(self, sparse: bool = True) -> float:
        """Return the success of the episode, 0 to 1; `sparse` requests 0 or 1 only."""

    def get_info(self) -> str:
        """Return information for the viewer; nothing beyond what the agent may know is required."""
        return ""

    def close(self) -> None:
        """Release the instance's resources; called once, whatever happened before."""
        return None

    @classmethod
    def prepare(cls) -> None:
        """Prepare a service's process before its first instance, for slow initialisation.

        Raises:
            EnvError: the environment cannot be hosted here.
        """
        return None

    @classmethod
    def get_query_list(cls, split: str, params: dict[str, Any]) -> list[str]:
        """Return the ids of the environment's own tasks for `split`.

        Such a task has only its id, which is also its `main_query`; the class derives the rest from it. `params` is
        what the client sent with the split; a class may ignore it.
        """
        raise EnvError(f"{cls.__name__} has no tasks of its own", hint="give it tasks from a file or a reader")


def opening(system: str, query: str) -> list[Message]:
    """Return the opening of a built-in environment: instructions, which an agent may use as its prompt, and the
    query."""
    return [{"role": "system", "content": system}, {"role": "user", "content": query}]


def last_question(messages: Sequence[Message]) -> str:
    """Return the text of a conversation's last question; empty where there is none."""
    return next((text_of(message) for message in reversed(messages) if message.get("role") == "user"), "")


def text_of(message: Message) -> str:
    """Return the text of a message whose content is a string or a list of blocks, as agent frameworks write it."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (block.get("text", "") if isinstance(block, dict) else block for block in content)
        return "".join(text for text in texts if isinstance(text, str))
    raise EnvError(
        f"a message's content is {type(content).__name__}", hint="pass a string or a list of text blocks as 'content'"
    )
