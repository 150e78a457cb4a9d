"""What an environment is: one instance, for one task, that answers an agent's messages.

An environment knows the world and the reference; it knows nothing of agents, models or training, nor
whether it runs inside this process or behind a service.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from astune.schema import EnvError, Message, Task


@dataclass(frozen=True, slots=True)
class EnvState:
    """What the agent sees first."""

    state: list[Message]
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnvStep:
    """What came of one action: messages for the agent, a reward, and whether the episode is over."""

    state: list[Message]
    reward: float
    is_terminated: bool
    info: dict[str, Any] = field(default_factory=dict)


class Environment(ABC):
    """An instance for one episode. `step` is called until it says `is_terminated`, then `evaluate`, then `close`."""

    quick: ClassVar[bool] = False
    """True where every method answers within a millisecond: it is then called on the event loop, without a thread."""

    fresh_process: ClassVar[bool] = False
    """True where an instance leaves something behind in its process: a service then starts one for each instance.
    Otherwise a process that closed one instance without failure hosts another."""

    forks: ClassVar[bool] = False
    """True where `prepare` leaves nothing open that a fork would break, as threads and connections. A service then
    prepares one process, and forks the others from it: they are there in milliseconds, and share its memory."""

    variables: ClassVar[frozenset[str] | None] = None
    """The variables that a service's processes are started with; None: all. For one that runs code which nobody has
    read: a variable that a process removes stays in its memory."""

    variant: ClassVar[str] = ""
    """What follows the colon in a name such as `reasoning_gym:leg_counting`; set on the class that is instantiated."""

    example_variant: ClassVar[str] = ""
    """A variant that exists, for errors; empty where nothing may follow the name."""

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
        """How well the episode went, 0 to 1; `sparse` asks for nothing in between."""

    def get_info(self) -> str:
        """What the viewer may show of the instance; no more than the agent may know is needed."""
        return ""

    def close(self) -> None:
        """Give back what the instance holds; called once, whatever happened before."""
        return None

    @classmethod
    def prepare(cls) -> None:
        """Called once in each process of a service, before it takes an instance: for what takes long the first time.

        Raises:
            EnvError: the environment cannot be hosted here.
        """
        return None

    @classmethod
    def get_query_list(cls, split: str, params: dict[str, Any]) -> list[str]:
        """The ids of the tasks that the environment itself brings for `split`.

        Such a task has nothing but its id, which is also its `main_query`: what it asks, the class finds out from that.
        `params` is what the client sent beside the split; a class may ignore it.
        """
        raise EnvError(f"{cls.__name__} brings no tasks of its own", hint="give it tasks from a file or a reader")


def opening(system: str, query: str) -> list[Message]:
    """How a built-in environment begins: how to act in it, which an agent may have as its prompt, and what is asked."""
    return [{"role": "system", "content": system}, {"role": "user", "content": query}]


def text_of(message: Message) -> str:
    """The text of a message whose content is a string or a list of blocks, as agent frameworks write it."""
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
