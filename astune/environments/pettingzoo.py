"""PettingZoo's turn-based games (its AEC API) as text: `pettingzoo:classic.tictactoe_v3` and others.

Games and rules are PettingZoo's own code; this file only translates. A player reads the board as the game prints it
(`render_mode="ansi"`), or else the observation's numbers, and the moves that it may make, and answers with the number
of one. An answer without a number that is allowed loses the game. Metadata of a task may hold `settings`, arguments of
the game.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from astune.environments.turn_based import TurnBased, player_name
from astune.schema import EnvError, imported, install_extra


class PettingZoo(TurnBased):
    example_variant: ClassVar[str] = "classic.tictactoe_v3"

    def begin(self, seed: int) -> None:
        module = _module(self.variant)
        self._prints = "ansi" in module.raw_env.metadata.get("render_modes", ())
        settings = {"render_mode": "ansi"} if self._prints else {}
        self._game = module.env(**settings | self.task.metadata.get("settings", {}))
        self._game.reset(seed=seed)
        self._totals = dict.fromkeys(self._game.possible_agents, 0.0)

    @classmethod
    def prepare(cls) -> None:
        _module(cls.variant)

    def view(self) -> tuple[str, str]:
        moves = ", ".join(map(str, self._moves()))
        seen = self._game.last()[0]
        board = self._game.render() if self._prints else seen["observation"] if isinstance(seen, dict) else seen
        return player_name(self._game.agent_selection), f"{board}\nYour move, one of: {moves}"

    def move(self, text: str) -> Mapping[str, float] | None:
        player, allowed = self._game.agent_selection, self._moves()
        numbers = [int(number) for number in re.findall(r"\d{1,9}", text) if int(number) in allowed]
        if not numbers:
            return {player_name(name): -1.0 if name == player else 0.0 for name in self._totals}
        self._game.step(numbers[-1])
        for name, reward in self._game.rewards.items():
            self._totals[name] += float(reward)
        if not all(self._game.terminations[one] or self._game.truncations[one] for one in self._game.agents):
            return None
        return {player_name(name): total for name, total in self._totals.items()}

    def roles(self) -> dict[str, str]:
        return {player_name(name): player_name(name) for name in self._totals}

    def close(self) -> None:
        self._game.close()

    def _moves(self) -> list[int]:
        """The moves that the player whose turn it is may make."""
        seen, _, _, _, info = self._game.last()
        mask = seen.get("action_mask") if isinstance(seen, dict) else info.get("action_mask")
        n_moves = int(self._game.action_space(self._game.agent_selection).n)
        return [move for move in range(n_moves) if mask is None or mask[move]]


def _module(variant: str) -> Any:
    name = f"pettingzoo.{variant}"
    return imported(name, needed_by=f"the environment {name}", error=EnvError, hint=install_extra("pettingzoo"))
