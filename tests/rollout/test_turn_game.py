"""`TurnGame`: each player of an environment with turns is an agent of its own, which reads what is its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from rollout_stage import Stage
from transformers import AutoTokenizer

from astune.environments.turn_based import TurnBased
from astune.schema import Episode, Task
from astune.workflow.turns import TurnGame


class Nim(TurnBased):
    """Five matches; whoever is named by the answer takes so many, and who takes the last one wins. A 9 is refused."""

    def begin(self, seed: int) -> None:
        self._left, self._turn, self._news = 5, 0, ["five matches", "five matches"]

    def view(self) -> tuple[str, str]:
        news, self._news[self._turn] = self._news[self._turn], ""
        return f"player {self._turn}", news

    def move(self, text: str) -> Mapping[str, float] | None:
        taken, me, other = int(text), self._turn, 1 - self._turn
        if taken == 9:
            self._news[me] = "not so many"
            return None
        self._left -= taken
        if self._left == 0:
            return {f"player {me}": 1.0, f"player {other}": -1.0}
        self._news[other], self._turn = f"{self._left} are left", other
        return None

    def roles(self) -> dict[str, str]:
        return {"player 0": "first", "player 1": "second"}


NIM = Task(task_id="nim", main_query="?", env_type=f"{__file__}->Nim")


def talk_of(episode: Episode, player: str) -> list[str]:
    [timeline] = [one for one in episode.timelines if one.agent == player]
    nodes = dict.fromkeys(span.node_id for span in timeline.spans if span.role != "system")
    return [str(episode.forest.nodes[node].content) for node in nodes]


def moves(folder: Path, *numbers: int) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.encode(str(number), add_special_tokens=False) for number in numbers]


async def test_a_turn_is_whose_it_is_and_each_target_earns_its_own(
    stage: Callable[..., Stage], smol_folder: Path
) -> None:
    there = stage(TurnGame, replies=moves(smol_folder, 2, 9, 1, 2), judge=None)
    [group] = await there.play([NIM])
    [episode] = group.episodes
    assert episode.reward is not None
    assert episode.reward.per_target == {"first": 1.0, "second": -1.0}
    assert episode.targets["player 1"] == "second"
    assert talk_of(episode, "player 0") == ["five matches", "2", "2 are left", "2"]
    assert talk_of(episode, "player 1") == ["3 are left", "9", "not so many", "1"]
    assert len(episode.timelines) == 2, "a player's talk only grows"
    assert episode.metrics["unfinished"] == 0


@pytest.mark.parametrize(("params", "reward"), [({}, 1.0), ({"trained": ["gone", "second", "first"]}, -1.0)])
async def test_a_game_of_which_both_sides_are_trained_has_the_reward_of_the_first(
    stage: Callable[..., Stage], smol_folder: Path, params: dict[str, list[str]], reward: float
) -> None:
    [group] = await stage(TurnGame, replies=moves(smol_folder, 2, 1, 2), judge=None, params=params).play([NIM])
    [episode] = group.episodes
    assert (episode.raw_reward, episode.status) == (reward, "success" if reward > 0 else "failed")


async def test_a_game_that_is_cut_earns_nothing_and_says_so(stage: Callable[..., Stage], smol_folder: Path) -> None:
    refused = moves(smol_folder, 9, 9, 9, 9)
    [group] = await stage(TurnGame, replies=refused, judge=None, multi_turn={"max_steps": 3}).play([NIM])
    [episode] = group.episodes
    assert episode.metrics["unfinished"] == 1
    assert episode.raw_reward == 0.0


async def test_an_environment_of_one_is_refused_by_name(stage: Callable[..., Stage]) -> None:
    alone = Task(task_id="sum", main_query="?", env_type="calculator", metadata={"answer": 1})
    [group] = await stage(TurnGame, judge=None).play([alone])
    assert "does not say whose turn it is" in (group.failed_attempts[0].error or "")
