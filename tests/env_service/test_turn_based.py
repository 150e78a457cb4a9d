"""Games of several players in one environment: a turn says whose it is, and the same seed is the same game."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from astune.env_service.built_in import environment_class
from astune.environments.turn_based import TurnBased
from astune.schema import EnvError, Task

Play = tuple[dict[str, str], list[tuple[str, str]], dict[str, Any], float]


def played(name: str, answer: Callable[[random.Random], str], seed: int, **metadata: Any) -> Play:
    """Roles, what each player read before its move, what the end says, and the evaluation."""
    task = Task(task_id="t", main_query="?", metadata=metadata)
    game = environment_class(name, asked_by="the test")(task, seed)
    begun = game.get_init_state()
    said, read, info = random.Random(seed), [(begun.info["player"], begun.state[0]["content"])], begun.info
    while True:
        step = game.step({"role": "assistant", "content": answer(said)})
        if step.is_terminated:
            game.close()
            return begun.info["roles"], read, step.info, game.evaluate()
        info = step.info
        read.append((info["player"], step.state[0]["content"]))


class Breaks(TurnBased):
    """Tosses a coin for whoever is asked, and has a fault of its own."""

    def begin(self, seed: int) -> None:
        self._turn = 0

    def view(self) -> tuple[str, str]:
        return f"player {self._turn % 2}", str(random.random())

    def move(self, text: str) -> Mapping[str, float] | None:
        self._turn += 1
        if text == "break":
            raise RecursionError("too deep")
        return {"player 0": 1.0, "player 1": -1.0} if text == "end" else None

    def roles(self) -> dict[str, str]:
        return {"player 0": "player 0", "player 1": "player 1"}


BREAKS = f"{__file__}->Breaks"


def test_a_game_draws_from_a_generator_of_its_own() -> None:
    def answers(said: random.Random) -> str:
        random.random()
        return said.choice(["on", "on", "on", "end"])

    before = random.getstate()
    games = [played(BREAKS, answers, seed) for seed in (1, 1, 2)]
    assert games[0] == games[1]
    assert games[0][1][0] != games[2][1][0]
    random.setstate(before)
    once = random.random()
    random.setstate(before)
    environment_class(BREAKS, asked_by="the test")(Task(task_id="t", main_query="?"), 1).get_init_state()
    assert random.random() == once, "the process's own generator is as it was"


def test_a_game_that_fails_on_a_move_ends_without_a_winner() -> None:
    _, _, end, score = played(BREAKS, lambda said: "break", 1)
    assert end == {"rewards": {"player 0": 0.0, "player 1": 0.0}, "failed": "RecursionError: too deep"}
    assert score == 0.5


@pytest.mark.parametrize(("asked", "roles"), [({}, 6), ({"players": 9}, 9)])
def test_secret_mafia_has_roles_and_one_side_wins(asked: dict[str, int], roles: int) -> None:
    pytest.importorskip("textarena")

    def vote(said: random.Random) -> str:
        return f"I name [{said.randrange(roles)}]"

    found = played("textarena:SecretMafia-v0", vote, 3, **asked)
    assert found == played("textarena:SecretMafia-v0", vote, 3, **asked)
    by_player, read, end, _ = found
    assert len(by_player) == roles
    assert {"Mafia", "Doctor", "Detective", "Villager"} == set(by_player.values())
    won = {by_player[player] == "Mafia" for player, reward in end["rewards"].items() if reward == 1.0}
    assert len(won) == 1, "one side, and all of it"
    for player, text in read:
        assert "Your teammates are" not in text or by_player[player] == "Mafia", "nobody reads what is not theirs"
    assert len(read) > roles


def test_kuhn_poker_is_played_by_two_and_asks_again_what_is_not_allowed() -> None:
    pytest.importorskip("textarena")
    roles, read, end, _ = played("textarena:KuhnPoker-v0", lambda said: "hm" if said.random() < 0.4 else "[check]", 6)
    assert list(roles) == ["player 0", "player 1"]
    assert sorted(end["rewards"].values()) == [-1.0, 1.0]
    assert any("invalid move" in text for _, text in read)
    with pytest.raises(EnvError, match="takes no 3 players"):
        played("textarena:KuhnPoker-v0", lambda said: "", 1, players=3)
    with pytest.raises(EnvError, match="has no game 'Chess'"):
        played("textarena:Chess", lambda said: "", 1)


def test_a_game_is_played_by_the_fewest_that_it_takes_however_it_refuses_fewer() -> None:
    pytest.importorskip("textarena")
    roles, *_ = played("textarena:TwoDollar-v0", lambda said: "[Propose] $1.00", 1)
    assert list(roles) == ["player 0", "player 1"]
    with pytest.raises(EnvError, match="takes no 3 players: TwoDollar game requires exactly 2 players"):
        played("textarena:TwoDollar-v0", lambda said: "", 1, players=3)


def test_a_game_of_pettingzoo_says_which_moves_there_are() -> None:
    pytest.importorskip("pettingzoo.classic")
    pytest.importorskip("pygame")
    name = "pettingzoo:classic.tictactoe_v3"
    _, read, end, _ = played(name, lambda said: f"I take {said.randrange(9)}", 2)
    assert "Your move, one of: 0, 1, 2, 3, 4, 5, 6, 7, 8" in read[0][1]
    assert [player for player, _ in read[:3]] == ["player 1", "player 2", "player 1"]
    assert played(name, lambda said: "none", 2)[2] == {"rewards": {"player 1": -1.0, "player 2": 0.0}}
    assert min(end["rewards"].values()) == -1.0
