"""Advantages: how much better an episode did than others, as a whole or in a part that has a reward of its own.

A baseline counts episodes, never timelines or tokens (law 5). Which rewards are compared is decided here, how they are
compared by the algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf, isnan
from typing import TYPE_CHECKING

from astune.algorithm.base import Algorithm, called
from astune.schema import Advantage, Episode, EpisodeGroup, MessageNode, Reward, TrainerError, shown_value

if TYPE_CHECKING:
    from torch import Tensor

NAN = float("nan")
_Role = str | int | None
"""The part of episodes that a row of rewards belongs to: a target, a turn, or None for whole episodes."""
FLAT = 1e-5
"""Rewards of a group count as equal within this part of their scale: their largest size, or 1 where all are smaller.

Rounding to float32 moves a reward by 6e-8 of itself, a judge's noise by perhaps 1e-6; divided by a standard deviation
as small, either would count as much as a solved task. Deliberate differences are larger."""


def group_advantages(reward_BK: Tensor, *, normalise: bool) -> Tensor:
    """Advantage of each episode against its own group.

        rewards 1 0 0 0, normalise=False   ->  0.75 -0.25 -0.25 -0.25
        rewards 1 0 0 0, normalise=True    ->  1.73 -0.58 -0.58 -0.58   (divided by 0.433)
        rewards 1 1 1 1                    ->  0 0 0 0
        rewards 0.3 0.300001 0.3 0.3       ->  0 0 0 0      (equal within `FLAT`)
        rewards 1 0 NaN                    ->  the first two of a group of two, and NaN

    Args:
        reward_BK: rewards, one row a task, one column an episode; NaN where an episode has none.
        normalise: divide by the group's standard deviation (GRPO); False leaves the difference, as Dr. GRPO does.

    Returns:
        advantages [B, K] in float64; 0 for a group whose rewards are equal within `FLAT`, NaN where the reward was.

    Source: Shao et al. 2024, arXiv 2402.03300, eq. 3; Liu et al. 2025, arXiv 2503.20783 for normalise=False.
    """
    reward_BK = reward_BK.double()
    centred_BK = reward_BK - reward_BK.nanmean(dim=1, keepdim=True)
    deviation_B1 = centred_BK.square().nanmean(dim=1, keepdim=True).sqrt()
    flat_B1 = _spread(reward_BK) <= FLAT * reward_BK.nan_to_num().abs().amax(dim=1, keepdim=True).clamp(min=1)
    advantage_BK = centred_BK / deviation_B1 if normalise else centred_BK
    return advantage_BK.masked_fill(flat_B1, 0.0).masked_fill(reward_BK.isnan(), NAN)


def advantages_of(algorithm: Algorithm, groups: Sequence[EpisodeGroup]) -> list[list[Advantage]]:
    """The advantages of groups, which need not have the same number of episodes: [groups][episodes].

    Where targets or turns have rewards of their own, a target is compared with the same target alone, and a turn with
    the same turn: within its group, or, with a baseline over the batch, over all groups of the step.

    Raises:
        TrainerError: a group has rewards per target and rewards per turn, or the algorithm returned another shape.
    """
    n_turns = max((len(episode.trained_messages) for group in groups for episode in group.episodes), default=0)
    parts = [_parts_of(group, algorithm, n_turns) for group in groups]
    labelled = [labelled for part in parts for labelled in zip(part.roles, part.reward_XK, strict=True)]
    if algorithm.baseline == "batch":
        rows = iter(_compared_by_role(algorithm, labelled))
    else:
        rows = (_compared(algorithm, [row])[0] for _, row in labelled)
    return [part.of_episodes([next(rows) for _ in part.reward_XK]) for part in parts]


def without_variance(algorithm: Algorithm, groups: Sequence[EpisodeGroup]) -> list[EpisodeGroup]:
    """The groups that nothing can be learnt from: all their advantages are zero, or of episodes without a reward.

    With a baseline over the batch these are all groups or none: a group that did exactly as well as the mean of the
    batch is a part of that mean.
    """
    quiet = [
        group for group, row in zip(groups, advantages_of(algorithm, groups), strict=True) if _teaches_nothing(row)
    ]
    return [] if algorithm.baseline == "batch" and len(quiet) < len(groups) else quiet


def _teaches_nothing(advantages: Sequence[Advantage]) -> bool:
    values = [value for one in advantages for value in (one.values() if isinstance(one, dict) else (one,))]
    return all(value == 0 or isnan(value) for value in values)


def _compared_by_role(algorithm: Algorithm, labelled: Sequence[tuple[_Role, Sequence[float]]]) -> list[list[float]]:
    """Rows of all groups, each role's by themselves: a wolf that wins is no better for the farmers that lose.

    group 1: wolf 1 1, farmer 0 0.   group 2: wolf 1 0, farmer 0 1.      less the mean, over the deviation:
    wolf     1 1 1 0   mean 0.75   ->    0.58  0.58   0.58 -1.73
    farmer   0 0 0 1   mean 0.25   ->   -0.58 -0.58  -0.58  1.73
    """
    advantage_XK: list[list[float]] = [[] for _ in labelled]
    for role in dict.fromkeys(role for role, _ in labelled):
        numbers = [number for number, (own, _) in enumerate(labelled) if own == role]
        compared = _compared(algorithm, [labelled[number][1] for number in numbers])
        for number, row in zip(numbers, compared, strict=True):
            advantage_XK[number] = row
    return advantage_XK


def _compared(algorithm: Algorithm, reward_XK: Sequence[Sequence[float]]) -> list[list[float]]:
    """The algorithm's advantages of rows, which need not be equally long."""
    width = max(map(len, reward_XK), default=0)
    if not width:
        return [[] for _ in reward_XK]
    import torch

    padded = [[*row, *[NAN] * (width - len(row))] for row in reward_XK]
    reward_BK = torch.tensor(padded, dtype=torch.float64)
    with called(algorithm, "advantages"):
        advantage_BK = algorithm.advantages(reward_BK)
    shape = getattr(advantage_BK, "shape", None)
    if shape != reward_BK.shape:
        found = f"shape {[*shape]}" if shape is not None else type(advantage_BK).__name__
        raise TrainerError(
            f"{type(algorithm).__name__}.advantages returned {found} for rewards of shape {[*reward_BK.shape]}",
            hint="return one advantage for each reward, and NaN where the reward is NaN",
        )
    advantage_BK = advantage_BK.masked_fill(reward_BK.isnan(), NAN)
    if not (advantage_BK.isfinite() | reward_BK.isnan()).all():
        raise TrainerError(
            f"{type(algorithm).__name__}.advantages returned {shown_value(advantage_BK.tolist())} for the rewards "
            f"{shown_value(reward_BK.tolist())}",
            hint="return a finite advantage for each reward that is not NaN",
        )
    return [row[: len(rewards)] for row, rewards in zip(advantage_BK.tolist(), reward_XK, strict=True)]


@dataclass(frozen=True, slots=True)
class _Parts:
    """A group's rewards, a row for each part of its episodes that has a reward of its own.

    Rows of the same role are compared. `row_K` is the row of each trained message of an episode, by node id; None where
    the only row is that of whole episodes.
    """

    episodes: Sequence[Episode]
    roles: Sequence[_Role]
    reward_XK: list[list[float]]
    row_K: list[dict[int, int]] | None = None

    def of_episodes(self, advantage_XK: list[list[float]]) -> list[Advantage]:
        """Return the advantages of the episodes, out of those of the rows."""
        if self.row_K is None:
            return [*advantage_XK[0]]
        return [
            NAN if episode.reward is None else {node: advantage_XK[row][column] for node, row in rows.items()}
            for column, (episode, rows) in enumerate(zip(self.episodes, self.row_K, strict=True))
        ]


def _parts_of(group: EpisodeGroup, algorithm: Algorithm, n_turns: int) -> _Parts:
    """
    Args:
        n_turns: of the longest episode of the step.
    """
    rewards = [episode.reward for episode in group.episodes if episode.reward is not None]
    per_target = any(reward.per_target is not None for reward in rewards)
    per_turn = any(reward.per_turn is not None for reward in rewards)
    if per_target and per_turn:
        raise TrainerError(
            f"the episodes of task {group.task.task_id} were rewarded per target and per turn",
            hint="let the judge give all episodes of a task the same kind of reward",
        )
    if per_target:
        return _by_target(group.episodes, algorithm)
    if per_turn:
        return _by_turn(group.episodes, algorithm, n_turns)
    shaped_K = [episode.raw_reward + _added(algorithm, episode) for episode in group.episodes]
    return _Parts(group.episodes, [None], [shaped_K])


def _added(algorithm: Algorithm, episode: Episode, part: Sequence[MessageNode] | None = None) -> float:
    """The algorithm's addition to the reward of an episode, or of some of its messages: the others are read."""
    if episode.reward is None or type(algorithm).shaping is Algorithm.shaping:
        return 0.0
    if part is None:
        with called(algorithm, "shaping"):
            return algorithm.shaping(episode)
    own = {node.node_id for node in part}
    nodes = [
        replace(node, trainable=False) if node.trainable and node.node_id not in own else node
        for node in episode.forest.nodes
    ]
    with called(algorithm, "shaping"):
        return algorithm.shaping(replace(episode, forest=replace(episode.forest, nodes=nodes)))


def _by_target(episodes: Sequence[Episode], algorithm: Algorithm) -> _Parts:
    """Each target against the episodes of the group in which it wrote something.

    wolf     1   0   -  1      ->  0.33 -0.67  -   0.33      (the third episode had no wolf)
    farmer   0   1   0  1      -> -0.5   0.5  -0.5 0.5
    """
    written_K: list[dict[str, list[MessageNode]]] = []
    for episode in episodes:
        written_K.append(written := {})
        for node in episode.trained_messages:
            written.setdefault(episode.target_of(node.agent), []).append(node)
    targets = sorted(set().union(*written_K))
    reward_XK = [
        [
            _reward_of(target, episode.reward) + _added(algorithm, episode, written[target])
            if target in written
            else NAN
            for episode, written in zip(episodes, written_K, strict=True)
        ]
        for target in targets
    ]
    row_K = [
        {node.node_id: targets.index(episode.target_of(node.agent)) for node in episode.trained_messages}
        for episode in episodes
    ]
    return _Parts(episodes, targets, reward_XK, row_K)


def _by_turn(episodes: Sequence[Episode], algorithm: Algorithm, n_turns: int) -> _Parts:
    """Advantage of an episode's return from a turn on, against the group's returns from that turn on.

        earned        0 0 1    and   0 1             an episode that has ended earns nothing more
        from turn on  1 1 1    and   1 1 (0)
        advantage     0 0 0.5  and   0 0

    A baseline may depend on the turn and on other episodes, not on what was done in that turn. Were ended episodes
    left out of it, the last turns of the longest episode would have none and not be trained.

    Source: Sutton and Barto 2018, "Reinforcement Learning", section 13.4, for the reward from now on against a
    baseline; Greensmith et al. 2004, JMLR 5, for baselines by time step. The process supervision of Shao et al. 2024,
    section 4.1.3, takes its mean over all steps of a group, so that long episodes have more weight in it (law 5).
    """
    earned_K = [_earned_from_each_turn(episode, algorithm) for episode in episodes]
    return_XK = [
        [
            NAN if episode.reward is None else earned[turn] if turn < len(earned) else 0.0
            for episode, earned in zip(episodes, earned_K, strict=True)
        ]
        for turn in range(n_turns)
    ]
    row_K = [{node.node_id: turn for turn, node in enumerate(episode.trained_messages)} for episode in episodes]
    return _Parts(episodes, range(n_turns), return_XK, row_K)


def _spread(reward_BK: Tensor) -> Tensor:
    """The largest reward of each row less its smallest, [B, 1]."""
    missing_BK = reward_BK.isnan()
    largest_B1 = reward_BK.masked_fill(missing_BK, -inf).amax(dim=1, keepdim=True)
    return largest_B1 - reward_BK.masked_fill(missing_BK, inf).amin(dim=1, keepdim=True)


def _reward_of(target: str, reward: Reward | None) -> float:
    if reward is None:
        return NAN
    return (reward.per_target or {}).get(target, reward.raw_reward)


def _earned_from_each_turn(episode: Episode, algorithm: Algorithm) -> list[float]:
    """Sums of the rewards of a turn and all later ones; one number for the episode was earned at its end."""
    messages = episode.trained_messages
    if episode.reward is None or episode.reward.per_turn is None:
        earned = [episode.raw_reward] * len(messages)
    else:
        earned = [*accumulate(reversed(episode.reward.per_turn))][::-1]
    return [own + _added(algorithm, episode, messages[turn:]) for turn, own in enumerate(earned)]
