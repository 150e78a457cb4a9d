"""Werewolves: the rules, played by rules; and whole games by a scripted model, with what was recorded of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from tutorial_stage import tutorial_config

from astune.engine.scripted import ScriptedEngine
from astune.rollout import RolloutPool
from astune.task_reader import open_task_reader
from astune.workflow.loading import load_workflow

pytest.importorskip("agentscope")

from tutorial.example_werewolves.game import NAMES, NOBODY, ROLES, Game, deal
from tutorial.example_werewolves.players import RuleSeat


class Told:
    """A player who does what the test says: answers by the first word of the question."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self.answers = answers
        self.heard: list[str] = []

    async def speak(self, question: str, listeners: list[Told]) -> str:
        return "Hm."

    async def choose(self, question: str, options: list[str]) -> str:
        kind = next(kind for kind in self.answers if kind in question)
        answer = self.answers[kind].pop(0)
        assert answer in options
        return answer

    async def receive(self, line: str) -> None:
        self.heard.append(line)


async def test_a_game_goes_as_its_rules_say():
    roles = dict(
        zip(NAMES, ["werewolf"] * 3 + ["villager"] * 3 + ["seer", "witch", "hunter"], strict=True)
    )  # Ann, Bob, Cleo; Dan, Eve, Finn; Gil, Hana, Ivo
    told = {
        "Ann": {"kill": ["Dan", "Hana"], "Vote": ["Ivo"]},
        "Bob": {"kill": ["Eve", "Hana"], "Vote": ["Ivo", "Gil"]},
        "Cleo": {"kill": ["Dan", "Hana"], "Vote": ["Ivo", "Gil"]},
        "Dan": {"Vote": ["Ann", "Gil"]},
        "Eve": {"Vote": ["Ann", "Bob"]},
        "Finn": {"Vote": ["Ivo", "Gil"]},
        "Gil": {"look": ["Ann", "Bob"], "Vote": ["Ann", "Bob"]},
        "Hana": {"antidote": ["yes"], "poison": [NOBODY], "Vote": ["Ann"]},
        "Ivo": {"Vote": ["Ann", "Bob"], "shoot": ["Ann"]},
    }
    players = {name: Told(answers) for name, answers in told.items()}
    game = Game(roles, players, Random(0))
    # Night 1: the witch saves Dan. Day 1: Ann 5, Ivo 4: Ann goes. Night 2: Hana dies. Day 2: Gil 4, Bob 3: Gil goes.
    assert await game.play(max_days=2) is None
    dead = [(day, who) for day, kind, who, _ in game.log if kind == "dies"]
    assert dead == [(1, "Ann"), (2, "Hana"), (2, "Gil")]
    assert "Ann is a werewolf." in players["Gil"].heard
    assert "Day 1. In the night died: nobody." in players["Ivo"].heard
    assert any("Sent away: Ann." in line for line in players["Bob"].heard)
    assert "Ann wants to kill Dan." in players["Bob"].heard
    assert not any("wants to kill" in line for name in NAMES[3:] for line in players[name].heard)


def played_by_rules(seed: int) -> Game:
    rng = Random(seed)
    roles = deal(rng)
    seats = {name: RuleSeat(name, roles, Random(rng.getrandbits(64))) for name in roles}
    game = Game(roles, seats, rng, discussion_rounds=2)
    asyncio.run(game.play(max_days=9))
    return game


@pytest.mark.slow
def test_every_game_is_one_game():
    winners = Counter()
    for seed in range(60):
        game = played_by_rules(seed)
        assert game.log == played_by_rules(seed).log
        winners[game.winner()] += 1
        died: set[str] = set()
        for _, kind, who, what in game.log:
            if kind == "dies":
                assert what == game.roles[who]
                died.add(who)
            else:
                assert who not in died or (kind == "shoot" and game.roles[who] == "hunter"), (who, kind)
            if kind == "attack":
                assert game.roles[who] == "werewolf" != game.roles[what]
        for day in range(1, game.day + 1):
            kinds = Counter((kind, who) for on, kind, who, _ in game.log if on == day)
            voted = [who for kind, who in kinds if kind == "votes"]
            assert not voted or all(kinds["votes", who] == 1 and kinds["says", who] == 2 for who in voted)
        assert set(game.alive) == set(game.roles) - died
        assert sum(kind == "save" and what == "yes" for _, kind, _, what in game.log) <= 1
        assert sum(kind == "poison" and what != NOBODY for _, kind, _, what in game.log) <= 1
    assert set(winners) == {"werewolves", "village"}, winners


@pytest.mark.parametrize(("roles", "suspect"), [(["werewolf", "villager", "villager"], "Ann"), (ROLES, "Bob")])
async def test_who_accuses_is_suspected_where_there_is_no_seer(roles: Sequence[str], suspect: str):
    names = NAMES[: len(roles)]
    seat = RuleSeat(names[-1], dict(zip(names, roles, strict=True)), Random(0))
    await seat.receive("Ann: I suspect Bob.")
    assert await seat.choose("Vote: who is sent away?", ["Ann", "Bob"]) == suspect


@pytest.mark.parametrize("path", ["werewolves.yaml", "duel.yaml", "both.yaml"])
async def test_games_of_the_model_are_recorded_by_role_and_betray_nothing(path: str, renderer, tokenizer):
    config = tutorial_config(f"example_werewolves/{path}")
    said = tokenizer.encode("I suspect Ann.", add_special_tokens=False)
    engine = ScriptedEngine(lambda *_: said)
    pool = RolloutPool(engine, renderer, load_workflow(config), None, config)
    before = engine.stats()
    games = open_task_reader(config.task_reader).read()
    assert len(games.training) == 1000
    [group] = await pool.run_groups(games.training[1:2], step=1, split="train", num_repeat=4, temperature=1.0)
    assert pool.balance([group], engine.stats() - before).difference == 0
    assert len(group.episodes) == 4, [episode.error for episode in group.failed_attempts]
    deals = [episode.targets for episode in group.episodes]
    trained = {"werewolf", "villager"} if path == "both.yaml" else {"werewolf"}
    assert deals == [deals[0]] * 4
    for episode in group.episodes:
        nodes = [node for node in episode.forest.nodes if node.sampled]
        assert {deals[0].get(node.agent, node.agent) for node in nodes if node.trainable} == trained
        assert episode.metrics["branches"] == len({node.agent for node in nodes}) - 1, "one timeline a player"
        assert episode.reward is not None
        won = episode.metrics["wolves_win"]
        assert episode.reward.per_target is not None
        assert episode.reward.per_target["werewolf"] == won == episode.reward.raw_reward
        assert {0, 1} >= {won + episode.metrics["village_wins"]}
        for node in nodes:
            told = "".join(str(one.content) for one in episode.forest.path(node.node_id))
            is_wolf = deals[0].get(node.agent) == "werewolf"
            assert ("wants to kill" not in told and "other werewolves are" not in told) or is_wolf
            assert "antidote?" not in told or deals[0].get(node.agent) == "witch"
