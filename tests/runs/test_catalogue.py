"""The catalogue of metrics: what names mean, and that it has the names that the code writes."""

from __future__ import annotations

from astune.runs import GROUPS, catalogue, described
from astune.trainer.reward_watch import PREFIX, SIGNS


def entry_of(name: str) -> str | None:
    found = described(name)
    return None if found is None else found.name


def test_a_name_is_found_by_what_it_says_exactly_before_its_pattern():
    assert entry_of("train/entropy") == "train/entropy"
    assert entry_of("time/rollout_s") == "time/rollout_s"
    assert entry_of("time/proofreading_s") == "time/<phase>_s"
    assert entry_of("episodes/turns_mean") == "episodes/turns_mean"
    assert entry_of("episodes/reward_WhiteStone_mean") == "episodes/reward_<judge>_mean"
    assert entry_of("episodes/black.stones_mean") == "episodes/<name>_mean"
    assert entry_of("train/versions_behind_12/tokens") == "train/versions_behind_<n>/tokens"
    assert entry_of("train/versions_behind_12/engine_kl") == "train/versions_behind_<n>/<measure>"
    assert entry_of("balance/masked/sampled under a grammar") == "balance/masked/<reason>"
    assert entry_of("verl/actor/lr") == "verl/<name>"
    assert entry_of("train/policy/wolf/loss") == "train/policy/<policy>/<measure>"
    assert entry_of("trainXentropy") is None


def test_a_title_names_what_the_pattern_stands_for():
    found = described("train/versions_behind_3/engine_kl")
    assert found is not None
    assert found.title_of("train/versions_behind_3/engine_kl") == "engine_kl, weights 3 steps old"


def test_every_entry_is_whole_and_stands_once():
    names = [metric.name for metric in catalogue()]
    assert len(names) == len(set(names))
    assert {metric.group for metric in catalogue()} == set(GROUPS)
    for metric in catalogue():
        assert all((metric.title, metric.title_zh, metric.meaning, metric.meaning_zh)), metric.name
        assert (metric.meaning[-1], metric.meaning_zh[-1]) == (".", "。"), metric.name


def test_signs_of_reward_hacking_are_all_in_it():
    watched = {metric.name for metric in catalogue() if metric.group == "watch"}
    assert {f"{PREFIX}{name}" for name in SIGNS} <= watched
