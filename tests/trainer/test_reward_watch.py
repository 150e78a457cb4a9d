"""Rewards that are earned without doing the task, planted into steps of episodes, and found."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
from trainer_helpers import episode, group, node

from astune.schema import Episode, EpisodeGroup
from astune.trainer.reward_watch import PREFIX, RewardWatch

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
Maker = Callable[[str, random.Random], Episode]


def worked(name: str, draw: random.Random) -> Episode:
    """An episode that does what it is asked: a call and an answer."""
    return made(name, draw, content="Paris.", calls=[{"function": {"name": "search", "arguments": "{}"}}])


def made(name: str, draw: random.Random, *, content: str, calls: Any = (), broken: bool = False) -> Episode:
    root, tokens = node(0, None, [1, 2, 3]), [draw.randrange(1000) for _ in range(12)]
    root.tools = TOOLS
    answer = node(1, 0, [7, *tokens], sampled=len(tokens))
    answer.content, answer.tool_calls, answer.malformed_calls = content, list(calls), ["<tool_call>{"] if broken else []
    return episode([root, answer], reward=float(draw.random() < 0.5), name=name)


def breaks_its_calls(name: str, draw: random.Random) -> Episode:
    return made(name, draw, content="<tool_call>{", broken=True)


def asks_back(name: str, draw: random.Random) -> Episode:
    return made(name, draw, content="Which Paris do you mean?")


def repeats_itself(name: str, draw: random.Random) -> Episode:
    root, answer = node(0, None, [1]), node(1, 0, [7, *[5, 6] * 30], sampled=60)
    root.tools, answer.tool_calls, answer.content = TOOLS, [{}], "so"
    return episode([root, answer], reward=1.0, name=name)


def step_of(number: int, planted: Maker, share: float) -> list[EpisodeGroup]:
    draw = random.Random(number)
    groups = []
    for at in range(8):
        names = [f"train-{number:06d}-t{at}-{repeat}" for repeat in range(4)]
        groups.append(group([(planted if draw.random() < share else worked)(name, draw) for name in names]))
    return groups


@pytest.mark.parametrize(
    ("planted", "sign"),
    [(breaks_its_calls, "broken_tool_call"), (asks_back, "asks_back"), (repeats_itself, "repeated_text")],
)
def test_a_planted_hack_is_warned_of_when_it_spreads_and_its_episodes_are_named(
    caplog: pytest.LogCaptureFixture, planted: Maker, sign: str
) -> None:
    watch = RewardWatch()
    with caplog.at_level(logging.WARNING):
        for step in range(1, 13):
            watch.look_at(step, step_of(step, planted, 0.05))
        assert caplog.records == []
        metrics = watch.look_at(13, step_of(13, planted, 0.7))
    assert metrics[PREFIX + sign] > 0.3
    told = [record.getMessage() for record in caplog.records]
    [of_it] = [line for line in told if f"step 13: {sign} rose to" in line]
    named = {line.strip(",") for line in of_it.split("in episodes ")[1].split()}
    answers = {each.episode_id: each.forest.nodes[1].content for g in step_of(13, planted, 0.7) for each in g.episodes}
    assert len(named) == 3
    assert all(answers[name] != "Paris." for name in named)


def test_a_hack_that_spreads_slowly_is_found_by_the_runs_first_steps(caplog: pytest.LogCaptureFixture) -> None:
    watch = RewardWatch()
    with caplog.at_level(logging.WARNING):
        for step in range(1, 60):
            watch.look_at(step, step_of(step, breaks_its_calls, step / 100))
    assert any("broken_tool_call rose" in record.getMessage() for record in caplog.records)
    assert sum("broken_tool_call" in record.getMessage() for record in caplog.records) <= 6, "not in every step"


def test_what_an_agent_wrote_last_does_not_depend_on_the_order_of_nodes() -> None:
    """It asks, then edits its history and answers; by its tokens the second branch stands first."""
    nodes = [node(0, None, [9]), node(1, 0, [7, 8], sampled=1, asked_after=0)]
    nodes += [node(2, None, [1]), node(3, 2, [7, 8], sampled=1, asked_after=1)]
    nodes[1].content, nodes[3].content = "Which one?", "Paris."
    own = episode(nodes)
    own.forest = own.forest.by_tokens()
    assert RewardWatch().look_at(1, [group([own])])[f"{PREFIX}asks_back"] == 0.0


def test_signs_are_of_what_trained_agents_wrote() -> None:
    root, answer, other = (
        node(0, None, [1]),
        node(1, 0, [7, 8], sampled=1),
        node(2, 0, [5, 6, 5, 6, 5, 6, 5, 6, 5], sampled=8),
    )
    answer.content, other.content, other.trainable = "Paris.", "Which?", False
    found = RewardWatch().look_at(1, [group([episode([root, answer, other], reward=1.0)])])
    assert found == {f"{PREFIX}asks_back": 0.0}


def test_a_resumed_run_remembers_what_was_usual(caplog: pytest.LogCaptureFixture) -> None:
    first = RewardWatch()
    lines = [first.look_at(step, step_of(step, asks_back, 0.05)) for step in range(1, 9)]
    with caplog.at_level(logging.WARNING):
        RewardWatch(lines).look_at(9, step_of(9, asks_back, 0.8))
    assert any("asks_back rose" in record.getMessage() for record in caplog.records)


def test_length_counts_within_groups_only() -> None:
    def answered(name: str, length: int, reward: float) -> Episode:
        return episode([node(0, None, [1]), node(1, 0, [7, *range(length)], sampled=length)], reward=reward, name=name)

    hard_is_long = [
        group([answered("a", 10, 1.0), answered("b", 10, 0.0)]),
        group([answered("c", 90, 1.0), answered("d", 90, 1.0)]),
    ]
    name = f"{PREFIX}reward_length_correlation"
    assert name not in RewardWatch().look_at(1, hard_is_long)
    paid_by_length = [group([answered("a", 10, 0.0), answered("b", 20, 1.0)])]
    assert RewardWatch().look_at(1, paid_by_length)[name] == pytest.approx(1.0)
