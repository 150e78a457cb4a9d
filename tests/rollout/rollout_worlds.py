"""Environments for the tests, each with one habit."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

from astune import Environment, EnvState, EnvStep


class Echo(Environment):
    """Repeats what the agent says, forever."""

    opened: ClassVar[list[int]] = []
    closed: ClassVar[int] = 0

    def get_init_state(self) -> EnvState:
        type(self).opened.append(self.seed)
        return EnvState([{"role": "user", "content": "say something"}], info={"seed": self.seed})

    def step(self, action: dict[str, Any]) -> EnvStep:
        return EnvStep([{"role": "user", "content": f"echo {action['content']}"}], 0.5, False)

    def evaluate(self, sparse: bool = True) -> float:
        return 1.0

    def close(self) -> None:
        type(self).closed += 1


class Broken(Echo):
    """Fails at the first step."""

    def step(self, action: dict[str, Any]) -> EnvStep:
        raise RuntimeError("the world is broken")


class Formless(Echo):
    """Begins with nothing."""

    def get_init_state(self) -> EnvState:
        return None  # type: ignore[return-value]


class BrokenOnce(Echo):
    """The first instance fails, later ones do not."""

    lives: ClassVar[int] = 0

    def get_init_state(self) -> EnvState:
        type(self).lives += 1
        self.life = self.lives
        return super().get_init_state()

    def step(self, action: dict[str, Any]) -> EnvStep:
        if self.life == 1:
            raise RuntimeError("not yet")
        return super().step(action)


class SlowToClose(Echo):
    """Takes its time at the end."""

    seconds = 0.6

    def close(self) -> None:
        time.sleep(self.seconds)
        super().close()


class Unborn(Echo):
    """Cannot be made."""

    def get_init_state(self) -> EnvState:
        raise RuntimeError("no world today")


class Stuck(Echo):
    """Hangs at the first step until the test lets go."""

    release: ClassVar[threading.Event] = threading.Event()

    def step(self, action: dict[str, Any]) -> EnvStep:
        self.release.wait(60)
        return super().step(action)
