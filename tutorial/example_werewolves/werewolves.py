"""Werewolves with nine players, of whom any role can be trained: `tutorial/example_werewolves/werewolves.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from astune import AstuneConfig, AstuneProxy, Task, TaskReaderBase, TaskReaderConfig, Workflow, WorkflowOutput
from tutorial.example_werewolves.game import NAMES, ROLES, Game, deal
from tutorial.example_werewolves.players import ModelSeat, RuleSeat, Seat, introduction


class ExampleWerewolves(Workflow):
    """A game. A role's tag is its name, and a tag earns 1 where its side wins, else 0.

    Args:
        trained: roles whose tokens are trained.
        by_rules: roles that are played by a few lines of rules instead of the model.
        roles: which roles are dealt; fewer make a smaller game.
        discussion_rounds: speeches of each player a day.
        max_days: days after which nobody has won.
        short_speech: players of the model name whom they suspect, or nobody, instead of speaking freely.
    """

    def __init__(
        self,
        config: AstuneConfig,
        trained: Sequence[str] = ("werewolf",),
        by_rules: Sequence[str] = (),
        roles: Sequence[str] = ROLES,
        discussion_rounds: int = 1,
        max_days: int = 6,
        short_speech: bool = False,
    ) -> None:
        super().__init__(config)
        self.trainable_targets = self._trained = tuple(trained)
        self._by_rules = set(by_rules)
        self._roles = tuple(roles)
        self._discussion_rounds = discussion_rounds
        self._max_days = max_days
        self._short_speech = short_speech

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput:
        roles = deal(proxy.rng, NAMES[: len(self._roles)], self._roles)
        seats = self._seated(roles, proxy)
        game = Game(roles, seats, proxy.rng, self._discussion_rounds)
        winner = await game.play(self._max_days)
        wolves, village = float(winner == "werewolves"), float(winner == "village")
        per_target = {role: wolves if role == "werewolf" else village for role in dict.fromkeys(self._roles)}
        reward = per_target[self._trained[0]]
        metrics = {
            "days": game.day,
            "wolves_win": wolves,
            "village_wins": village,
            "unreadable_choices": sum(seat.n_unreadable for seat in seats.values() if isinstance(seat, ModelSeat)),
        }
        return WorkflowOutput(reward=reward, is_success=reward == 1, per_target=per_target, metrics=metrics)

    def _seated(self, roles: dict[str, str], proxy: AstuneProxy) -> dict[str, Seat]:
        seats: dict[str, Seat] = {}
        for name, role in roles.items():
            rng = Random(proxy.rng.getrandbits(64))  # one each: votes are cast at once, in no certain order
            if role in self._by_rules:
                seats[name] = RuleSeat(name, roles, rng)
            else:
                model, instructions = proxy.as_agentscope_model(name, role), introduction(name, roles)
                seats[name] = ModelSeat(name, model, instructions, rng, short_speech=self._short_speech)
        return seats


class WerewolvesTaskReader(TaskReaderBase):
    """Games to play: a task is a deal; `training` and `validation` are how many there are of each."""

    def __init__(
        self, config: TaskReaderConfig, *, base_dir: Path | None = None, training: int = 1000, validation: int = 64
    ) -> None:
        super().__init__(config, base_dir=base_dir)
        self.training, self.validation = training, validation

    def training_tasks(self) -> list[Task]:
        return self._games("train", self.training)

    def validation_tasks(self) -> list[Task]:
        return self._games("held-out", self.validation)

    def _games(self, split: str, n: int) -> list[Task]:
        names = [f"{split} game {number}" for number in range(n)]
        return [Task(task_id=name, main_query=f"Play werewolves: {name}.") for name in names]
