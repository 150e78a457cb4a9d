"""`trainer.samples`: what each rule trains, by worked examples, and where its tokens are in the accounting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from trainer_helpers import config, episode, group, node

from astune.algorithm import GRPO, DrGRPO
from astune.algorithm.advantages import advantages_of
from astune.backbone.cluster.rows import rows_of
from astune.config.samples import SampleRule
from astune.engine.base import EngineStats
from astune.rollout import token_balance
from astune.runs import RunDirectory, balance_of
from astune.schema import Advantage, Constraint, Episode, EpisodeGroup, Grammar
from astune.trainer.batch import ALL_MASKED, NO_VARIANCE, NOBODY_TRAINED, batch_of, drop_without_variance
from astune.trainer.ledger import RolloutResult, StepLedger
from astune.trainer.policy import PolicyTrainer
from astune.trainer.sample_rules import apply_rules
from astune.trainer.samples import weighted


def game(*messages: tuple[str, int, int], **of_episode: Any) -> Episode:
    """An episode of messages (agent, first token, number of tokens), each in a conversation of its own.

    Equal first tokens and numbers of one agent are equal messages after equal prompts.
    """
    nodes = []
    for agent, first, n_tokens in messages:
        root = node(len(nodes), None, [1, 2], agent=agent)
        nodes += [root, node(root.node_id + 1, root.node_id, [first] * n_tokens, sampled=n_tokens, agent=agent)]
    return episode(nodes, **of_episode)


def ruled(rules: Sequence[dict[str, Any]], own: EpisodeGroup, advantages: Sequence[Advantage]) -> Any:
    return apply_rules([SampleRule.model_validate(rule) for rule in rules], own, advantages)


def same(found: Sequence[Advantage], expected: Sequence[Advantage]) -> bool:
    return str(found) == str(list(expected))


NAN = math.nan
ANN_AND_BOB = (("Ann", 5, 3), ("Bob", 6, 2), ("Ann", 7, 4), ("Ann", 8, 1))
"""Messages 1, 3, 5 and 7, of 3, 2, 4 and 1 tokens."""


@pytest.mark.parametrize(
    ("rule", "left_out"),
    [
        ({"agent": "Ann"}, [1, 5, 7]),
        ({"target": ["wolf"]}, [3]),
        ({"calls": [0, 1]}, [1, 3]),
        ({"calls": [-1, None]}, [3, 7]),
        ({"agent": "Ann", "calls": [1, 3]}, [5, 7]),
        ({"min_tokens": 3}, [1, 5]),
        ({"max_tokens": 2}, [3, 7]),
        ({"status": "truncated"}, []),
        ({"status": ["success", "failed"]}, [1, 3, 5, 7]),
    ],
)
def test_messages_are_chosen_by_agent_target_phase_length_and_outcome(
    rule: dict[str, Any], left_out: list[int]
) -> None:
    own = game(*ANN_AND_BOB, targets={"Bob": "wolf"})
    [advantage], accounts = ruled([{"do": "drop", **rule}], group([own]), [1.0])
    assert sorted(own.left_out) == left_out
    tokens = {1: 3, 3: 2, 5: 4, 7: 1}
    cause = "trainer.samples 1: drop"
    assert accounts == (Counter({cause: sum(tokens[one] for one in left_out)}) if left_out else Counter())
    assert own.timelines[0].spans[-1].mask_reason == (cause if 1 in left_out else None)
    if left_out:
        assert same([advantage], [{one: NAN if one in left_out else 1.0 for one in tokens}])
    else:
        assert advantage == 1.0


def branching() -> Episode:
    """Ann is asked twice about one thing, and edits her history: the second branch stands first by its tokens."""
    nodes = [node(0, None, [1, 2]), node(1, 0, [9] * 2, sampled=2, asked_after=0)]
    nodes.append(node(2, None, [1, 1], fork_cause="message edited"))
    nodes.append(node(3, 2, [8] * 3, sampled=3, asked_after=1))
    return episode(nodes, per_turn=[1.0, 0.0])


def test_calls_and_turns_follow_the_order_in_which_they_were_asked_however_a_forest_is_ordered() -> None:
    recorded, by_tokens = branching(), branching()
    by_tokens.forest = by_tokens.forest.by_tokens()
    assert [one.n_sampled for one in by_tokens.forest.nodes if one.sampled] == [3, 2], "the branch stands first"
    for own, first in ((recorded, 1), (by_tokens, 3)):
        ruled([{"do": "drop", "calls": [0, 1]}], group([own]), [1.0])
        assert [*own.left_out] == [first]
        assert own.forest.nodes[first].n_sampled == 2
        assert [one.n_sampled for one in own.trained_messages] == [2, 3]
    other = episode([node(0, None, [1]), node(1, 0, [5], sampled=1)], name="other", per_turn=[0.0])
    [[advantage, _]] = advantages_of(DrGRPO(), [group([by_tokens, other])])
    assert advantage == {3: 0.5, 1: 0.0}, "what came first earned it"


def test_a_cap_keeps_so_many_messages_of_each_agent_of_each_episode() -> None:
    games = [game(*[("Ann", n, 2) for n in range(5)], ("Bob", 6, 1), name=name) for name in ("one", "two")]
    games[1].seed = 1
    _, accounts = ruled([{"do": "cap", "messages": 2}], group(games), [1.0, -1.0])
    assert accounts == {"trainer.samples 1: cap": 2 * 3 * 2}
    assert [len(own.left_out) for own in games] == [3, 3]
    assert games[0].left_out.keys() != games[1].left_out.keys(), "each episode draws by its own seed"
    once_more = game(*[("Ann", n, 2) for n in range(5)], ("Bob", 6, 1))
    ruled([{"do": "cap", "messages": 2}], group([once_more]), [1.0])
    assert once_more.left_out == games[0].left_out


def test_a_weight_multiplies_advantages_and_nothing_leaves_training() -> None:
    games = [game(("Ann", 5, 3), ("Bob", 6, 2), name=name) for name in ("one", "two")]
    rule = {"do": "reweight", "weight": 0.5, "agent": "Ann"}
    changed, accounts = ruled([rule], group(games), [1.0, {1: -1.0, 3: 0.25}])
    assert changed == [{1: 0.5, 3: 1.0}, {1: -0.5, 3: 0.25}]
    assert not accounts
    weighed = weighted([group(games[:1])], [changed[:1]], "episode")
    assert [(one.advantages[0], one.token_weight) for one in weighed] == [(0.5, 1 / 5), (1.0, 1 / 5)]


def test_equal_messages_of_a_target_become_one_with_the_mean_of_their_advantages() -> None:
    wolves = {"Ann": "wolf", "Eve": "wolf"}
    games = [
        game((agent, first, 2), targets=wolves, name=f"{agent}{first}")
        for agent, first in (("Ann", 5), ("Eve", 5), ("Ann", 6))
    ]
    games.append(game(("Bob", 5, 2), name="Bob"))
    games.append(game(("Ann", 5, 2), targets=wolves, name="last"))
    changed, accounts = ruled([{"do": "deduplicate"}], group(games), [1.0, 1.0, -1.0, 2.0, -1.0])
    assert same(changed, [{1: 1 / 3}, {1: NAN}, -1.0, 2.0, {1: NAN}])
    assert accounts == {"trainer.samples 1: deduplicate": 4}


def test_the_same_tokens_are_no_copy_where_they_were_read_or_sampled_under_a_grammar() -> None:
    plain, read, formed = (
        game(("Ann", 5, 2), name="plain"),
        episode([], name="read"),
        game(("Ann", 5, 2), name="formed"),
    )
    read.forest.nodes += [node(0, None, [1, 2, 5], agent="Ann"), node(1, 0, [5], sampled=1, agent="Ann")]
    formed.forest.nodes[1].constraint = Constraint(Grammar("regex", "x+"), (0,))
    changed, accounts = ruled([{"do": "deduplicate"}], group([plain, read, formed]), [1.0, -1.0, 2.0])
    assert (changed, accounts) == ([1.0, -1.0, 2.0], {})


def test_rules_apply_in_their_order_and_each_has_an_account() -> None:
    own = game(*ANN_AND_BOB)
    rules = [
        {"do": "drop", "max_tokens": 1},
        {"do": "cap", "messages": 2},
        {"do": "reweight", "weight": 2, "agent": "Bob"},
    ]
    [advantage], accounts = ruled(rules, group([own]), [1.0])
    assert accounts == {"trainer.samples 1: drop": 1}, "two of Ann's messages were left for the cap"
    assert same([advantage], [{1: 1.0, 3: 2.0, 5: 1.0, 7: NAN}])


def test_an_episode_without_a_reward_has_no_samples() -> None:
    changed, accounts = ruled([{"do": "drop"}], group([game(*ANN_AND_BOB, reward=None)]), [NAN])
    assert math.isnan(changed[0])
    assert not accounts


def test_what_is_left_weighs_as_if_nothing_else_had_been_sampled() -> None:
    """Two episodes of 3 + 2 and of 3 + 2 tokens; of the second nothing is left, of the first two tokens."""
    games = [game(("Ann", 5, 3), ("Bob", 6, 2), name="one"), game(("Ann", 5, 3), ("Ann", 6, 2), name="two")]
    changed, _ = ruled([{"do": "drop", "agent": "Ann"}], group(games), [1.0, -1.0])
    [timeline] = weighted([group(games)], [changed], "episode")
    assert (timeline.episode_id, timeline.advantages, timeline.token_weight) == ("one", [1.0, 1.0], 1 / 2)
    [row] = rows_of(group(games), changed, GRPO())
    assert (row.response_ids, row.advantages) == ([6, 6], [1.0, 1.0]), "a cluster trains the same"


@pytest.mark.parametrize("rest", ["some", "a group", "none"])
def test_a_step_accounts_for_every_token_that_a_rule_left_out(small_folder: Path, tmp_path: Path, rest: str) -> None:
    rule = {"do": "drop", "agent": "Ann"} if rest != "none" else {"do": "drop"}
    settings = config(samples=[rule], total_steps=1)
    others = (("Bob", 6, 2),) if rest != "a group" else ()
    groups = [
        group([game(*ANN_AND_BOB, reward=reward, name=f"a{reward}") for reward in (0.0, 1.0)]),
        group([game(("Ann", 5, 3), *others, reward=reward, name=f"b{reward}") for reward in (0.0, 1.0)]),
    ]
    policy = PolicyTrainer.load(small_folder, settings)
    sampled = sum(one.forest.sampled_tokens() for own in groups for one in own.episodes)
    counted = EngineStats(sampled_tokens=sampled)
    run = RunDirectory.create(tmp_path, "experiment")
    with run, run.open_episodes() as episodes, run.open_metrics() as metrics:
        for own in groups:
            for one in own.episodes:
                episodes.append(one)
        ledger = StepLedger(
            settings, episodes=episodes, metrics=metrics, checkpoints=run.checkpoints, n_validation_tasks=0
        )
        rollouts = RolloutResult(groups, counted, 1.0, token_balance(groups, counted))
        batch = ledger.batch(1, rollouts, policy.algorithm)
        report = policy.step(batch) if batch.groups else None
        ledger.record_step(batch, rollouts, report, seconds={"train": 1.0}, order={})
    [line] = run.metrics()
    balance = balance_of(line.metrics)
    trained = {"some": 8, "a group": 4, "none": 0}[rest]
    assert (balance.difference, balance.trained) == (0, trained)
    assert balance.masked == {"trainer.samples 1: drop": sampled - trained}
    with run.episodes() as stored:
        rows = {name: stored.row(name) for name in ("a1.0", "b1.0")}
    assert rows["b1.0"].untrained == (None if rest == "some" else "trainer.samples leaves nothing of the group")
    if rest == "some":
        assert str(rows["a1.0"].advantages) == str([NAN, 1.0, NAN, NAN])
        assert rows["a1.0"].n_trained == 2


def test_advantages_count_episodes_of_which_nothing_is_trained() -> None:
    """Rewards 1 0 0 0: the winner's advantage is 1.73, whoever is left out."""
    games = [game(("Ann", 5, 1), reward=reward, name=str(n)) for n, reward in enumerate((1.0, 0.0, 0.0, 0.0))]
    for own in games[2:]:
        own.status = "truncated"
    batch = batch_of(1, [group(games)], GRPO(), [SampleRule(do="drop", status=["truncated"])])
    assert batch.advantages[0][:2] == [pytest.approx(1.7320508), pytest.approx(-0.5773503)]
    assert batch.left_out == {"trainer.samples 1: drop": 2}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"do": "cap"}, "`do: cap` requires `messages`"),
        ({"do": "reweight"}, "`do: reweight` requires `weight`"),
        ({"do": "drop", "messages": 3}, "`messages` is only allowed with cap"),
        ({"do": "cap", "messages": 3, "weight": 2}, "`weight` is only allowed with reweight"),
        ({"do": "reweight", "weight": 0}, "greater than 0"),
        ({"do": "drop", "min_tokens": 3, "max_tokens": 2}, "`min_tokens` is above `max_tokens`"),
        ({"do": "drop", "status": "error"}, "status"),
        ({"do": "drop", "calls": [0, 0]}, "`calls: .0, 0.` is an empty range"),
        ({"do": "drop", "calls": [2, 1]}, "`calls: .2, 1.` is an empty range"),
        ({"do": "drop", "calls": [-1, -2]}, "`calls: .-1, -2.` is an empty range"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SampleRule.model_validate(rule)


def test_a_flat_group_of_which_the_rules_leave_nothing_is_no_part_of_the_mean() -> None:
    """Three groups of truncated episodes without a success, and one that varies: alike, though it alone is computed."""
    groups = [group([game(("Ann", 5, 1), reward=0.0, name=f"{n}{k}") for k in range(2)]) for n in range(3)]
    for own in (own for each in groups[:2] for own in each.episodes):
        own.status = "truncated"
    groups.append(group([game(("Ann", 5, 1), reward=float(k), name=f"x{k}") for k in range(2)]))
    drop_without_variance(groups, GRPO())
    assert [each.dropped for each in groups] == [NO_VARIANCE] * 3 + [None]
    batch = batch_of(1, groups, GRPO(), [SampleRule(do="drop", status=["truncated"])])
    assert (len(batch.groups), len(batch.flat), batch.left_out) == (1, 1, {})
    assert not any(own.left_out for each in groups for own in each.episodes), (
        "it is not annotated with what was not done"
    )
    assert len(batch_of(1, groups, GRPO()).flat) == 3


def test_a_group_of_masked_tokens_is_dropped_by_name() -> None:
    grammar = Constraint(Grammar("regex", "a|b"), (0,))
    games = group(
        [
            episode(
                [node(0, None, [1, 2]), node(1, 0, [3], sampled=1, constraint=grammar)], reward=reward, name=str(reward)
            )
            for reward in (0.0, 1.0)
        ]
    )
    for own in games.episodes:
        own.constrained_tokens = "mask"
    drop_without_variance([games], GRPO())
    assert batch_of(1, [games], GRPO()).groups == []
    assert games.dropped == ALL_MASKED


def test_a_group_in_which_no_trained_agent_spoke_is_dropped_by_name() -> None:
    silent = [
        episode(
            [node(0, None, [1, 2]), node(1, 0, [3, 4], sampled=2, trainable=False)], reward=reward, name=str(reward)
        )
        for reward in (0.0, 1.0)
    ]
    games = group(silent)
    drop_without_variance([games], GRPO())
    assert games.dropped == NOBODY_TRAINED
    assert batch_of(1, [games], GRPO()).groups == []
