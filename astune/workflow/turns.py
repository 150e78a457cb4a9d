"""A game of several players as a workflow: each player is an agent of its own, and is asked when it is its turn.

It plays environments whose `info` says whose turn it is (`astune/environments/turn_based.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from astune.config.schema import AstuneConfig
from astune.schema import Message, Task, WorkflowError
from astune.workflow.base import Workflow, WorkflowOutput
from astune.workflow.proxy import AstuneProxy


class TurnGame(Workflow):
    """A game. A player's target tag is its role, or its name in games without roles; a tag earns its players' mean.

    A player's conversation only grows: what it has not read yet, and what it answered. A game that `max_steps` ends
    earns nothing. The game's own reward, by which runs are reported and compared, is that of one tag: the mean over
    both sides of a game is always 0 where one wins what the other loses.

    Args:
        trained: roles, or names such as `player 0`, whose tokens are trained; None trains all. The first that plays
            gives the game its reward, and where there is none, the first tag of the game by name.
        system: how every player's conversation begins.
    """

    def __init__(self, config: AstuneConfig, trained: Sequence[str] | None = None, system: str | None = None) -> None:
        super().__init__(config)
        self.trainable_targets = None if trained is None else tuple(trained)
        self._system = system

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        roles: Mapping[str, str] | None = proxy.env_info.get("roles")
        if roles is None:
            raise WorkflowError(
                f"the environment of task {task.task_id} does not say whose turn it is",
                hint="give the task an env_type of several players, such as textarena:SecretMafia-v0",
            )
        models = {player: proxy.as_agentscope_model(player, role) for player, role in roles.items()}
        begun: list[Message] = [{"role": "system", "content": self._system}] if self._system else []
        talks: defaultdict[str, list[Message]] = defaultdict(lambda: list(begun))
        received, info, terminate = list(proxy.init_messages), dict[str, Any](proxy.env_info), False
        while not terminate:
            player = str(info["player"])
            talks[player] += received
            answer = await models[player].achat(talks[player])
            talks[player].append(answer)
            _, _, terminate, info = await proxy.agym_step(answer)
            received = proxy.env_messages
        return self._output(roles, info)

    def _output(self, roles: Mapping[str, str], info: Mapping[str, Any]) -> WorkflowOutput:
        rewards: Mapping[str, float] = info.get("rewards", {})
        of_role: defaultdict[str, list[float]] = defaultdict(list)
        for player, role in roles.items():
            of_role[role].append(rewards.get(player, 0.0))
        per_target = {role: fmean(values) for role, values in of_role.items()}
        shown = per_target[next((tag for tag in self.trainable_targets or () if tag in per_target), min(per_target))]
        metrics = {"unfinished": float(not rewards), "game_failed": float("failed" in info)}
        return WorkflowOutput(reward=shown, is_success=shown > 0, per_target=per_target, metrics=metrics)
