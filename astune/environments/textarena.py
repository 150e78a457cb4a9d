"""TextArena's games, with as many players as they take: `textarena:SecretMafia-v0`, `textarena:KuhnPoker-v0`, ...

Games and rules are TextArena's own code; this file only translates. One message is one move. Metadata of a task may
hold

    players     how many; the fewest that the game takes, where it is not given
    settings    arguments of the game, such as {"discussion_rounds": 1}

Own tasks have ids such as `train-17`, which is also the game's seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from astune.environments.turn_based import TurnBased, number_of_players, player_name
from astune.schema import EnvError, imported, install_extra

_MOST_PLAYERS = 16
_GAME = -1
"""The sender of a game's own messages, which come from no player."""


class TextArena(TurnBased):
    example_variant: ClassVar[str] = "SecretMafia-v0"

    def begin(self, seed: int) -> None:
        textarena = _textarena()
        if self.variant not in textarena.envs.registration.ENV_REGISTRY:
            raise EnvError(
                f"TextArena has no game {self.variant!r}",
                hint="write its name with its version, such as textarena:SecretMafia-v0",
            )
        settings = dict(self.task.metadata.get("settings", {}))
        fewest = 1 if "players" not in self.task.metadata else number_of_players(self.task)
        most = _MOST_PLAYERS if "players" not in self.task.metadata else fewest
        for players in range(fewest, most + 1):
            self._game = textarena.make(self.variant, **settings)
            try:
                self._game.reset(num_players=players, seed=seed)
            except (AssertionError, ValueError) as cause:  # games' words for a number of players that they do not take
                if players == most:
                    raise EnvError(f"{self.variant} takes no {players} players: {cause}") from cause
            else:
                break
        self._bare = self._game
        while hasattr(self._bare, "env"):
            self._bare = self._bare.env  # of wrappers, which show each player everything again at each turn
        self._roles = {
            player_name(number): _role(number, about) for number, about in self._bare.state.game_info.items()
        }

    @classmethod
    def prepare(cls) -> None:
        _textarena()

    def view(self) -> tuple[str, str]:
        number, messages = self._bare.get_observation()
        lines = [text if who == _GAME else f"Player {who}: {text}" for who, text, _ in messages]
        return player_name(number), "\n".join(lines)

    def move(self, text: str) -> Mapping[str, float] | None:
        done, _ = self._game.step(text)
        if not done:
            return None
        rewards, _ = self._bare.close()
        return {player_name(number): reward for number, reward in sorted((rewards or {}).items())}

    def roles(self) -> dict[str, str]:
        return dict(self._roles)


def _role(number: int, about: Mapping[str, Any]) -> str:
    role = str(about.get("role", ""))
    return player_name(number) if role in ("", f"Player {number}") else role


def _textarena() -> Any:
    return imported("textarena", needed_by="the environment", error=EnvError, hint=install_extra("textarena"))
