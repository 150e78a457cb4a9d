"""Environments of gymnasium with numbered actions, in text: `gymnasium:Taxi-v4`, `gymnasium:Blackjack-v1` and others.

The rules are gymnasium's own code; this file only translates. The agent reads what the environment draws as text
(`render_mode="ansi"`), or else the observation's numbers, and the actions that it may take; one message is one action,
the last of these numbers or names in it. A message without one ends the episode. Metadata of a task may hold

    settings     arguments of the environment, such as {"is_rainy": true}
    actions      the actions' names in gymnasium's order, such as ["south", "north", "east", "west"]
    success_at   the sum of rewards that is a success; gymnasium's threshold where it has one, else anything above 0

Own tasks have ids such as `train-17`, which is also the environment's seed.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from astune.env_service.base import Environment, EnvState, EnvStep, text_of
from astune.environments._own_tasks import SPLITS, split_and_index, task_ids
from astune.schema import EnvError, Message, Task, imported, install_extra

_COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)


class Gymnasium(Environment):
    quick: ClassVar[bool] = True
    example_variant: ClassVar[str] = "Taxi-v4"

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        own = split_and_index(task.task_id)
        self._seed = seed if own is None else SPLITS[own[0]][0] + own[1]
        self._game = _made(self.variant, dict(task.metadata.get("settings", {})))
        space = self._game.action_space
        if not hasattr(space, "n"):
            raise EnvError(
                f"gymnasium:{self.variant} takes {space}, and only numbered actions can be written as words",
                hint="wrap it in an environment of your own that turns a message into an action",
            )
        self._names = [str(name) for name in task.metadata.get("actions", range(int(space.n)))]
        if len(self._names) != space.n:
            raise EnvError(
                f"task {task.task_id}: actions has {len(self._names)} names, and there are {space.n} actions"
            )
        longest_first = sorted(self._names, key=len, reverse=True)  # "fire left" is not "fire"
        self._named = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in longest_first), re.IGNORECASE)
        self._first = int(getattr(space, "start", 0))
        self._total = 0.0

    def get_init_state(self) -> EnvState:
        seen, info = self._game.reset(seed=self._seed % 2**32)
        about = f"{self.task.main_query}\n\n" if self.task.main_query not in ("", self.task.task_id) else ""
        return EnvState([{"role": "user", "content": about + self._view(seen, info)}])

    def step(self, action: Message) -> EnvStep:
        named = self._named.findall(text_of(action))
        if not named:
            return EnvStep([], reward=0.0, is_terminated=True, info={"stray": True})
        number = [name.lower() for name in self._names].index(named[-1].lower())
        seen, reward, terminated, truncated, info = self._game.step(number + self._first)
        self._total += float(reward)
        over = bool(terminated or truncated)
        observed: list[Message] = [] if over else [{"role": "user", "content": self._view(seen, info)}]
        return EnvStep(observed, reward=float(reward), is_terminated=over)

    def evaluate(self, sparse: bool = True) -> float:
        """Whether the sum of rewards is a success; the sum itself where the dense evaluation is asked for."""
        if not sparse:
            return self._total
        least = self.task.metadata.get("success_at", self._game.spec.reward_threshold)
        return float(self._total > 0 if least is None else self._total >= least)

    def get_info(self) -> str:
        return f"sum of rewards {self._total:g}"

    def close(self) -> None:
        self._game.close()

    @classmethod
    def prepare(cls) -> None:
        _library()

    @classmethod
    def get_query_list(cls, split: str, params: dict[str, Any]) -> list[str]:
        _library()
        return task_ids(split, environment=f"gymnasium:{cls.variant}")

    def _view(self, seen: Any, info: dict[str, Any]) -> str:
        board = _COLOURED.sub(r"[\1]", self._game.render()).strip() if self._game.render_mode == "ansi" else str(seen)
        mask = info.get("action_mask")
        allowed = [name for number, name in enumerate(self._names) if mask is None or mask[number]]
        return f"{board}\n\nYour action, one of: {', '.join(allowed)}"


def _made(name: str, settings: dict[str, Any]) -> Any:
    """The environment, which draws itself as text where it can. Raises EnvError if gymnasium has none of this name, or
    does not take the settings."""
    gymnasium = _library()
    try:
        drawn = "ansi" in (gymnasium.spec(name).make(**settings).metadata.get("render_modes") or ())
        return gymnasium.make(name, **({"render_mode": "ansi"} if drawn else {}), **settings)
    except (gymnasium.error.Error, TypeError) as cause:
        raise EnvError(
            f"gymnasium:{name} cannot be made: {cause}", hint="gymnasium.pprint_registry() lists all"
        ) from cause


def _library() -> Any:
    return imported("gymnasium", needed_by="the environment", error=EnvError, hint=install_extra("frozenlake"))
