"""Games of wolves and farmers, made by hand, and the settings of a policy for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_helpers import VOCABULARY, config, episode, group, node

from astune.algorithm import GRPO
from astune.config.schema import AstuneConfig
from astune.schema import Episode, Reward, TrainingBatch
from astune.trainer.batch import batch_of, drop_without_variance
from astune.trainer.policies import Policies

WOLVES, FARMERS = ("Ann", "Bob"), ("Eve", "Dan")
TARGETS = {**dict.fromkeys(WOLVES, "wolf"), **dict.fromkeys(FARMERS, "farmer")}
MODELS = {"wolf": {"lora": {"rank": 4}, "optim": {"lr": 1e-2, "warmup_steps": 0}}, "farmer": {"lora": {"rank": 2}}}


def several(models: dict[str, Any], **settings: Any) -> AstuneConfig:
    plain = config(**settings).model_dump()
    return AstuneConfig.model_validate(plain | {"models": models})


def game(number: int, agents: Sequence[str]) -> Episode:
    """Wolves and farmers in turn: some read one another, one wolf and one farmer share a conversation."""
    nodes = [node(0, None, [1, 2, number])]
    for turn, agent in enumerate(("Ann", "Eve", "Bob", "Dan", "Ann")):
        answer = [10 + (7 * number + 3 * turn + i) % (VOCABULARY - 10) for i in range(2 + turn % 3)]
        parent = len(nodes) - 1 if turn < 2 else 0
        nodes.append(node(len(nodes), parent, [7, turn, *answer], sampled=len(answer), agent=agent))
        nodes[-1].trainable = agent in agents
    return episode(nodes, name=f"game-{number}", targets=TARGETS)


def batch(step: int, agents: Sequence[str] = (*WOLVES, *FARMERS)) -> TrainingBatch:
    """Two groups of two games; a wolf's advantage is not a farmer's."""
    groups = [group([game(4 * step + 2 * pair + one, agents) for one in range(2)]) for pair in range(2)]
    advantages = [
        [
            {each.node_id: sign * (1.0 if each.agent in WOLVES else -0.5) for each in own.trained_messages}
            for own, sign in zip(one.episodes, (1.0, -1.0), strict=True)
        ]
        for one in groups
    ]
    return TrainingBatch(step, groups, [list(row) for row in advantages])


def judged(step: int, agents: Sequence[str] = (*WOLVES, *FARMERS), **how: Any) -> TrainingBatch:
    """Four groups as a judge of targets rewards them: wolves alone differ, farmers alone, both, and neither.

    In the first no farmer spoke, as where an earlier version played them, and wolves of two groups are all alike.
    """
    rewards = [((1.0, 0.0), (0.0, 0.0)), ((1.0, 1.0), (0.0, 1.0)), ((0.0, 1.0), (1.0, 0.0)), ((1.0, 1.0), (0.0, 0.0))]
    groups = [group([game(8 * step + 2 * n + k, agents if n else WOLVES) for k in range(2)]) for n in range(4)]
    for each, (wolf, farmer) in zip(groups, rewards, strict=True):
        for own, *values in zip(each.episodes, wolf, farmer, strict=True):
            own.reward = Reward(
                raw_reward=0.0, is_success=False, per_target=dict(zip(("wolf", "farmer"), values, strict=True))
            )
            for message in own.forest.nodes:
                message.trainable = message.trainable and message.agent in agents
    drop_without_variance(groups, GRPO())
    return batch_of(step, groups, GRPO(), policy_of=str if len(agents) > 2 else None, **how)


def loaded(folder: Path, config: AstuneConfig) -> Policies:
    """The policies of a run whose `model.path` is in `folder`."""
    bases = [(base, folder if base.key == "model.path" else Path(base.path)) for base in config.bases()]
    return Policies.load(bases, config)
