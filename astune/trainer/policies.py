"""Several policies that train in one run: adapters on one copy of a model, or models, each with its own optimiser.

A step trains each policy on what its own agents wrote, as if it were alone: the loss of a policy is a weighted mean
over its own tokens. To the training loop it is one trainer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from astune.algorithm import Algorithm, load_algorithm
from astune.config.bases import Base
from astune.config.schema import AstuneConfig
from astune.config.strict import changed
from astune.engine.adapters import Adapter, write_adapter
from astune.engine.base import AdapterEngine, InferenceEngine, PolicyEngine
from astune.schema import ConfigError, EngineError, Episode, EpisodeGroup, TrainerError, TrainingBatch
from astune.schema.forest import NOT_A_TARGET
from astune.trainer.batch import NO_VARIANCE_FOR_POLICY, trains
from astune.trainer.league import League
from astune.trainer.lora import factors_of
from astune.trainer.mismatch import Mismatch
from astune.trainer.own_logprobs import OwnLogprobs
from astune.trainer.policy import PolicyTrainer, require_temperature
from astune.trainer.policy_model import PolicyModel
from astune.trainer.rows import row_metrics
from astune.trainer.samples import TokenAccounts, account
from astune.trainer.step_report import StepReport, version_metrics

_log = logging.getLogger(__name__)
_Engine = TypeVar("_Engine", bound=AdapterEngine)
_SUMS = ("trained_tokens", "computed_tokens", "read_tokens", "microbatches")
"""Metrics that add up over policies."""
_TRAINED_BY = "trained by "
_POOL = "@league"
"""The folder of the pool beside those of the policies, of which none has an @ in its name."""


class Policies:
    """The policies of `models` that are trained, by name. Frozen ones are the engine's alone.

    `version` counts the steps in which any of them was trained.
    """

    def __init__(self, trainers: Mapping[str, PolicyTrainer], config: AstuneConfig, base_of: Mapping[str, str]) -> None:
        self._trainers = dict(trainers)
        self._config = config
        self._base_of = base_of
        self._silent: set[str] = set()
        self._league = League(self, config, base_of) if config.trainer.league.share > 0 else None

    @classmethod
    def load(
        cls, bases: Sequence[tuple[Base, Path]], config: AstuneConfig, algorithm: Algorithm | None = None
    ) -> Policies:
        """Load each base on which a policy is trained once, with all of these.

        Args:
            bases: the models of the run, with their folders.

        Raises:
            TrainerError: a model cannot be trained here, with the reason.
            ConfigError: an adapter's `path` holds none that fits.
        """
        require_temperature(config)
        algorithm = algorithm or load_algorithm(config)
        _require_starts(config, [base for base, _ in bases])
        trainers: dict[str, PolicyTrainer] = {}
        for base, folder in bases:
            if not base.trained:
                continue
            models = PolicyModel.on_base(base, folder, config.model, seed=config.seed)
            for name, policy in base.trained.items():
                own = changed(config, trainer={"optim": policy.optim or config.trainer.optim})
                trainers[name] = PolicyTrainer(models[name], own, folder, algorithm)
        of = {name: base.path for base, _ in bases for name in base.policies}
        return cls({name: trainers[name] for name in config.models if name in trainers}, config, of)

    def __getitem__(self, name: str) -> PolicyTrainer:
        return self._trainers[name]

    @property
    def version(self) -> int:
        return max(trainer.version for trainer in self._trainers.values())

    @property
    def algorithm(self) -> Algorithm:
        return next(iter(self._trainers.values())).algorithm

    async def publish(self, engine: InferenceEngine) -> None:
        """Let an engine sample with the present weights.

        Raises:
            EngineError: it takes none of several policies.
        """
        for name, trainer in self._whole.items():
            await _taking(engine, PolicyEngine).load_policy(name, trainer)
        if len(self._whole) < len(self._trainers):
            await _taking(engine, AdapterEngine).load_adapters(self)

    async def enter_league(self, step: int, engine: InferenceEngine) -> None:
        """Have the earlier versions that play in a step in the engine, where there is a league."""
        if self._league is not None:
            await self._league.enter(step, _taking(engine, AdapterEngine))

    async def make_room(self, engine: InferenceEngine) -> None:
        """Before a step: an engine's copies of weights that `publish` replaces need not be kept meanwhile."""
        for name in self._whole:
            await _taking(engine, PolicyEngine).drop_policy(name)

    def adapters(self) -> dict[str, Adapter]:
        return {
            name: factors_of(one.model.module, one.model.adapter)
            for name, one in self._trainers.items()
            if name not in self._whole
        }

    @property
    def _whole(self) -> dict[str, PolicyTrainer]:
        """The policies that train every weight."""
        return {name: one for name, one in self._trainers.items() if not one.model.lora}

    def step(self, batch: TrainingBatch) -> StepReport:
        """Train each policy on its own part of a batch; one that wrote nothing in it stays as it is.

        Raises:
            TrainerError: no policy has anything to train, or a number is not finite; `version` says whether an earlier
                policy has moved already.
        """
        self._warn_of_silent(batch)
        before, reports = self.version, dict[str, StepReport]()
        for name, trainer in self._trainers.items():
            own = self._part(batch, name)
            accounts = account(own)
            if accounts.trained:
                trainer.model.activate()
                reports[name] = trainer.step(own)
                reports[name].metrics["masked_fraction"] = _of_own_tokens(accounts).masked_fraction
        if not reports:
            raise TrainerError("the batch has no trained token", hint="this is a defect of astune: do not train on it")
        version = self.version
        for trainer in self._trainers.values():
            trainer.set_version(version)
        return _together(batch, reports, trained_version=before)

    def _warn_of_silent(self, batch: TrainingBatch) -> None:
        """Say once of each policy that no agent with one of its targets spoke."""
        episodes = [episode for group in batch.groups for episode in group.episodes]
        spoke = {episode.target_of(node.agent) for episode in episodes for node in episode.forest.nodes if node.sampled}
        for name in sorted(self._trainers.keys() - {self._config.policy_of(each) for each in spoke} - self._silent):
            self._silent.add(name)
            _log.warning(
                "models.%s is not trained in this step: no agent spoke with a target tag of %s, only %s; where that is "
                "no chance of the deal, name these tags in models.%s.targets or in as_agentscope_model(name, tag)",
                name,
                self._config.models[name].targets or [name],
                sorted(spoke),
                name,
            )

    def save_model(self, folder: Path) -> None:
        """Each policy in a folder of its name: its adapter as peft and vLLM load it, or the whole model."""
        for name, adapter in self.adapters().items():
            write_adapter(folder / name, adapter, base=self._base_of[name])
        for name, trainer in self._whole.items():
            trainer.save_model(folder / name)

    def save_state(self, folder: Path, rng: dict[str, Tensor] | None = None) -> None:
        for name, trainer in self._trainers.items():
            trainer.save_state(folder / name, rng)
        if self._league is not None:
            self._league.save(folder / _POOL)

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote.

        Raises:
            TrainerError: a policy was not in that run, or its state does not fit, or one that it trained would go on
                untrained; the message names it.
        """
        self._require_none_lost(folder)
        for name, trainer in self._trainers.items():
            if not (folder / name).is_dir():
                raise TrainerError(
                    f"the policy {name} is not in {folder}",
                    hint=f"resume without it, or begin a new run, in which models.{name}.path and those of the others "
                    "are their adapters of this one",
                )
            try:
                trainer.load_state(folder / name)
            except TrainerError as error:
                raise TrainerError(f"the policy {name}: {error.message}", hint=error.hint) from error
        if self._league is not None:
            self._league.load(folder / _POOL)

    def _require_none_lost(self, folder: Path) -> None:
        """Refuse to forget what a policy has learnt, unless it is frozen with weights that the user names."""
        trained = (each.name for each in sorted(folder.iterdir()) if each.is_dir() and each.name != _POOL)
        for name in trained:
            policy = self._config.models.get(name)
            if name not in self._trainers and (policy is None or policy.path is None):
                raise TrainerError(
                    f"the policy {name} was trained until {folder}, and would be an untrained model from there on",
                    hint=f"train models.{name} as before, or freeze it as it is now: copy model/{name} of that "
                    f"checkpoint and set models.{name}.path to the copy",
                )

    def _part(self, batch: TrainingBatch, policy: str) -> TrainingBatch:
        """The batch as it is for one policy: the others' messages are read, and masked.

        Groups in which it wrote nothing are no part of it, and those that teach others alone are flat.
        """
        groups = [self._of_policy(group, policy) for group in batch.groups]
        flat = [self._of_policy(group, policy) for group in batch.flat]
        kept = [pair for pair in zip(groups, batch.advantages, strict=True) if trains(pair[0])]
        flat = [group for group in flat if trains(group)] + [
            group for group in (*groups, *flat) if self._is_flat_for(group, policy)
        ]
        return replace(batch, groups=[group for group, _ in kept], advantages=[row for _, row in kept], flat=flat)

    def _of_policy(self, group: EpisodeGroup, policy: str) -> EpisodeGroup:
        return EpisodeGroup(group.task, [self._own(episode, policy) for episode in group.episodes])

    def _is_flat_for(self, group: EpisodeGroup, policy: str) -> bool:
        """Return whether what the policy wrote is left out since its own advantages are all zero."""
        return any(
            episode.left_out.get(node.node_id) == NO_VARIANCE_FOR_POLICY
            and self._config.policy_of(episode.target_of(node.agent)) == policy
            for episode in group.episodes
            for node in episode.trained_messages
        )

    def _own(self, episode: Episode, policy: str) -> Episode:
        others = {
            node.node_id: f"{_TRAINED_BY}{writer}"
            for node in episode.trained_messages
            if (writer := self._config.policy_of(episode.target_of(node.agent))) != policy
        }
        return replace(episode, left_out=episode.left_out | others)


def _of_own_tokens(accounts: TokenAccounts) -> TokenAccounts:
    """Without what others wrote, other policies or models that are not trained."""
    masked = {
        why: count for why, count in accounts.masked.items() if why != NOT_A_TARGET and not why.startswith(_TRAINED_BY)
    }
    return TokenAccounts(accounts.trained, Counter(masked))


def _taking(engine: InferenceEngine, kind: type[_Engine]) -> _Engine:
    """
    Raises:
        EngineError: it takes none of what this kind does.
    """
    if not isinstance(engine, kind):
        raise EngineError(
            f"{type(engine).__name__} takes no weights of several policies",
            hint="set engine.type to in_process, or train one policy",
        )
    return engine


def _require_starts(config: AstuneConfig, bases: Sequence[Base]) -> None:
    begun = [name for base in bases for name, policy in base.trained.items() if policy.start is not None]
    if begun and config.trainer.loss.kl_coef > 0:
        raise ConfigError(
            f"trainer.loss.kl_coef is above 0 and models.{begun[0]} begins with an adapter: the distance would be that "
            "to the model without it",
            hint="set kl_coef to 0, or begin with a new adapter",
        )


def _together(batch: TrainingBatch, reports: Mapping[str, StepReport], *, trained_version: int) -> StepReport:
    """A report of all policies: sums, means over trained tokens of what all have, and each one's own by its name.

    What is known token by token, the distance to the engine, is measured over the tokens of all, and so are rows.
    """
    accounts = account(batch)
    logprobs: OwnLogprobs = {}
    metrics: dict[str, float] = {}
    for name, report in reports.items():
        metrics |= {f"policy/{name}/{key}": value for key, value in report.metrics.items() if "/" not in key}
        for episode_id, messages in report.logprobs.items():
            logprobs.setdefault(episode_id, {}).update(messages)
    every: Sequence[StepReport] = [*reports.values()]
    mismatch = Mismatch.join([report.mismatch for report in every])
    shared = set.intersection(*({*report.metrics} for report in every))
    trained = sum(report.trained_tokens for report in every)
    for key in shared:
        values = [report.metrics[key] for report in every]
        weighted = sum(value * report.trained_tokens for value, report in zip(values, every, strict=True)) / trained
        metrics[key] = sum(values) if key in _SUMS else weighted
    metrics |= version_metrics(batch, mismatch, logprobs, trained_version)
    metrics |= row_metrics(batch, metrics["computed_tokens"])
    metrics["masked_fraction"] = accounts.masked_fraction
    return StepReport(metrics, trained, mismatch, logprobs)
