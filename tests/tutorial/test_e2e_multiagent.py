"""Games of several agents, trained for real, and a table for each: `make e2e-multiagent`.

`ASTUNE_MULTIAGENT_MODEL`, `_STEPS` and `_GAMES` say with which model, for how many steps, and how many held-out games
are played before and after; by default the small real model, 10 and 64.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import astune
from astune.context_tracker.replay import faults
from astune.engine.model_files import resolve_model
from astune.renderers import load_renderer
from astune.runs import balance_of
from astune.runs.interval import wilson_interval
from astune.schema import Episode

MODEL = os.environ.get("ASTUNE_MULTIAGENT_MODEL", "builtin:smollm2-135m")
STEPS = int(os.environ.get("ASTUNE_MULTIAGENT_STEPS", "10"))
GAMES = int(os.environ.get("ASTUNE_MULTIAGENT_GAMES", "64"))
TUTORIAL = Path(__file__).parents[2] / "tutorial"
LEAGUE = {"share": 0.5, "every": 2, "size": 3}


def tutorial(name: str, **params: Any) -> dict[str, Any]:
    own = yaml.safe_load((TUTORIAL / name).read_text())["astune"]
    own["task_reader"]["params"] |= {"validation": GAMES}
    own["trainer"] |= params
    return own


def of_turns(env_type: str, models: dict[str, Any], system: str, **rollout: Any) -> dict[str, Any]:
    return {
        "models": models,
        "task_reader": {"type": "env_service", "env_service": {"env_type": env_type, "validation_split": "validation"}},
        "rollout": {
            "workflow": "astune.workflow.turns->TurnGame",
            "num_repeat": 4,
            "max_model_len": 4096,
            "max_response_length_in_one_turn": 12,
            "multi_turn": {"max_steps": 150},
            **rollout,
            "params": {"system": system, **rollout.get("params", {})},
        },
        "trainer": {
            "tasks_per_step": 2,
            "tokens_per_microbatch": 4096,
            "validation": {"max_tasks": GAMES},
            "optim": {"lr": 5.0e-4},
        },
    }


def adapter(*targets: str) -> dict[str, Any]:
    return {"targets": list(targets), "lora": {"rank": 16}}


def mafia() -> dict[str, Any]:
    models = {"mafia": adapter("Mafia"), "village": adapter("Villager", "Doctor", "Detective")}
    return of_turns("textarena:SecretMafia-v0", models, "Answer with a player's number in brackets, such as [2].")


def poker() -> dict[str, Any]:
    models = {"player": adapter("player 0", "player 1")}
    game = of_turns("textarena:KuhnPoker-v0", models, "Answer with one move in brackets, such as [check].")
    game["trainer"]["league"] = LEAGUE
    return game


EXPERIMENTS = {
    "werewolves, both sides in a league": lambda: tutorial("example_werewolves/both.yaml", league=LEAGUE),
    "planner and solver": lambda: tutorial("example_planner_solver/planner_solver.yaml"),
    "SecretMafia, both sides": mafia,
    "KuhnPoker, one policy in a league": poker,
}


def by_target(episodes: list[Episode], what: str) -> str:
    """Calls, or timelines, by the target that made them."""
    counts: Counter[str] = Counter()
    for episode in episodes:
        if what == "calls":
            counts.update(episode.target_of(node.agent) for node in episode.forest.nodes if node.sampled)
        else:
            counts.update(episode.target_of(timeline.agent) for timeline in episode.timelines)
    return ", ".join(f"{target} {n}" for target, n in sorted(counts.items()))


def wins(episodes: list[Episode]) -> Iterator[tuple[str, str]]:
    """Each trained target, and how many of its games it won: with a reward of 1, or by the team's success."""
    won: dict[str, list[bool]] = {}
    for episode in episodes:
        assert episode.reward is not None
        for target in {episode.target_of(node.agent) for node in episode.trained_messages}:
            of_targets = episode.reward.per_target
            result = episode.reward.is_success if of_targets is None else of_targets[target] == 1
            won.setdefault(target, []).append(result)
    for target, results in sorted(won.items()):
        low, high = wilson_interval(sum(results), len(results))
        yield target, f"{sum(results)} of {len(results)} = {sum(results) / len(results):.2f} [{low:.2f} to {high:.2f}]"


@pytest.mark.e2e
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_game_is_trained_and_every_token_of_it_accounted_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = EXPERIMENTS[name]()
    if str(experiment["task_reader"].get("env_service", "")).find("textarena") >= 0:
        pytest.importorskip("textarena")
    monkeypatch.chdir(tmp_path)
    experiment["model"] = {"path": MODEL}
    experiment["trainer"] |= {"total_steps": STEPS, "test_freq": STEPS}
    run = astune.train(experiment, quiet=True)
    lines = run.metrics("train")
    assert len(lines) == STEPS
    assert [balance_of(line).difference for line in lines] == [0] * STEPS
    episodes = run.episodes(split="train")
    renderer = load_renderer(resolve_model(MODEL), MODEL)
    broken = [fault for episode in episodes for fault in faults(episode.forest, renderer)]
    assert broken == []
    tokens = {
        policy: int(sum(line.get(f"train/policy/{policy}/trained_tokens", 0) for line in lines))
        for policy in experiment["models"]
    }
    assert sum(tokens.values()) == sum(balance_of(line).trained for line in lines), "each token by one policy"
    before, after = (dict(wins(run.episodes(step=step, split="validation"))) for step in (0, STEPS))
    assert before
    assert after
    said = [
        f"\n{name}, {MODEL}, {STEPS} steps",
        f"  episodes            {len(episodes)}, {sum(line['groups/dropped'] for line in lines):.0f} groups dropped",
        f"  calls               {by_target(episodes, 'calls')}",
        f"  timelines           {by_target(episodes, 'timelines')}",
        f"  tokens trained      {', '.join(f'{policy} {n}' for policy, n in tokens.items())}",
        f"  balance             0 in all {STEPS} steps",
        f"  replay              {sum(e.forest.sampled_tokens() for e in episodes)} sampled tokens, no fault",
        *(f"  {target:18}  won {before[target]} -> {after.get(target, 'not played')}" for target in before),
    ]
    for pairing in sorted({key.split("/")[1] for line in lines for key in line if key.startswith("league/")}):
        there = [line for line in lines if f"league/{pairing}/episodes" in line]
        n = sum(line[f"league/{pairing}/episodes"] for line in there)
        total = sum(line[f"league/{pairing}/episodes"] * line[f"league/{pairing}/reward_mean"] for line in there)
        said.append(f"  {pairing:28}  mean reward {total / n:.2f} of {n:.0f} episodes")
    sys.stdout.write("\n".join([*said, ""]))
