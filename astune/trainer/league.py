"""The pool of the league: adapters of earlier versions, kept in memory and with the resume point.

It is a source of adapters for the engine. Who plays against whom is decided in `astune/config/league.py`.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from astune.config.league import adapter_in, policy_in, pool_of, slot_of
from astune.config.schema import AstuneConfig
from astune.engine.adapters import Adapter, AdapterSource, Factors, read_adapter, write_adapter
from astune.engine.base import AdapterEngine
from astune.schema import Episode, EpisodeGroup

_STEPS = "kept_at.json"
_log = logging.getLogger(__name__)


class League:
    """Keeps versions of the policies that train.

    Args:
        policies: their present adapters.
        base_of: the model that each is on.
    """

    def __init__(self, policies: AdapterSource, config: AstuneConfig, base_of: Mapping[str, str]) -> None:
        self._policies = policies
        self._base_of = base_of
        self._config = config
        self._kept: dict[str, Adapter] = {}
        self._kept_at: dict[int, int] = {}
        """The step after which each slot's version was kept."""
        self._in_engine = False

    @property
    def version(self) -> int:
        return self._policies.version

    def adapters(self) -> Mapping[str, Adapter]:
        return self._kept

    async def enter(self, step: int, engine: AdapterEngine) -> None:
        """Prepare the rollouts of a step: keep the present version where it is due, and load the pool into the
        engine."""
        league = self._config.trainer.league
        for kept_at in pool_of(league, step):
            slot = slot_of(league, kept_at)
            if self._kept_at.get(slot) == kept_at:
                continue
            if kept_at < pool_of(league, step)[0]:
                _log.warning(
                    "the league has no version of step %s; that of step %s plays in its place", kept_at, step - 1
                )
            for policy, adapter in self._policies.adapters().items():
                self._kept[adapter_in(policy, slot)] = _copied(adapter)
            self._kept_at[slot], self._in_engine = kept_at, False
        if not self._in_engine:
            await engine.load_adapters(self)
            self._in_engine = True

    def save(self, folder: Path) -> None:
        """Write the pool."""
        for name, adapter in self._kept.items():
            write_adapter(folder / name, adapter, base=self._base_of[policy_in(name)])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _STEPS).write_text(json.dumps(self._kept_at))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; a run that had no league until now begins one with its present adapters."""
        if (folder / _STEPS).is_file():
            self._kept_at = {int(slot): step for slot, step in json.loads((folder / _STEPS).read_text()).items()}
            self._kept = {each.name: read_adapter(each) for each in sorted(folder.iterdir()) if each.is_dir()}
        self._in_engine = False


def league_metrics(config: AstuneConfig, groups: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Return the present policies' rewards by pairing, as `league/wolf_vs_village_2/reward_mean`.

    The number is the opponent's generation, 1 for the newest kept; `wolf_vs_others_0` is where all play as they are.
    With rewards of 1 and 0 a mean is a win rate.
    """
    if config.trainer.league.share == 0:
        return {}
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for episode in (one for group in groups for one in group.episodes):
        past = config.past_player(episode.step, episode.task.task_id)
        against = "others_0" if past is None else f"{past.target or past.policy}_{past.generation}"
        for who, reward in _present_rewards(config, episode).items():
            rewards[f"league/{who}_vs_{against}"].append(reward)
    means = {f"{pairing}/reward_mean": fmean(values) for pairing, values in rewards.items()}
    return means | {f"{pairing}/episodes": float(len(values)) for pairing, values in rewards.items()}


def _present_rewards(config: AstuneConfig, episode: Episode) -> dict[str, float]:
    """The mean reward of each policy over its targets that are trained in an episode; of one policy, of each target."""
    if episode.reward is None:
        return {}
    several = sum(policy.train for policy in config.models.values()) > 1
    of_targets = episode.reward.per_target or {}
    found: defaultdict[str, list[float]] = defaultdict(list)
    for target in sorted({episode.target_of(node.agent) for node in episode.trained_messages}):
        who = config.policy_of(target) if several else target
        found[who].append(of_targets.get(target, episode.raw_reward))
    return {who: fmean(values) for who, values in found.items()}


def _copied(adapter: Adapter) -> dict[str, Factors]:
    return {
        layer: Factors(down.detach().float().cpu().clone(), up.detach().float().cpu().clone(), scale)
        for layer, (down, up, scale) in adapter.items()
    }
