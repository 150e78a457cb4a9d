"""The local backbone: rollouts and training in one process on one machine.

It puts the rooms together and owns their lifetimes; what happens in a step is in `astune/trainer/local.py`. Nothing
here imports torch before something is trained or compared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from astune.algorithm import Algorithm
from astune.backbone.base import Backbone, RunObserver
from astune.backbone.bases import folders
from astune.backbone.engines import OpenModel, model_folder, open_model, require_policies_answered
from astune.backbone.kept import Attempts, rewind
from astune.backbone.memory import Estimate, ModelShape, local_memory
from astune.backbone.origin import origin_of
from astune.backbone.parts import UserParts
from astune.backbone.recorder import Recorder
from astune.config.schema import AstuneConfig
from astune.config.strict import changed
from astune.engine.remote.publication import PublishedWeights
from astune.rollout import DEMONSTRATIONS, PREFERENCES, DemonstrationPool, RolloutObserver, RolloutPool
from astune.runs import RunDirectory
from astune.schema import ConfigError, EpisodeGroup
from astune.task_judge import GroupJudgeBase
from astune.task_reader import TaskOrder, how_to_hold_out

if TYPE_CHECKING:
    from astune.numerics.check import NumericsReport


class LocalBackbone(Backbone):
    """Rollouts and training in one process, by `train` of this module."""

    hands_over_weights: ClassVar[bool] = True

    def check(self, config: AstuneConfig) -> None:
        check_settings(config)

    def check_algorithm(self, config: AstuneConfig, algorithm: Algorithm) -> None:
        require_groups(config, algorithm)

    def check_tasks(self, config: AstuneConfig, parts: UserParts) -> None:
        check_tasks(config, parts)

    def memory(self, config: AstuneConfig, shape: ModelShape, *, on_gpu: bool, in_bfloat16: bool) -> list[Estimate]:
        return [local_memory(config, shape, on_gpu=on_gpu, in_bfloat16=in_bfloat16)]

    async def train(
        self,
        config: AstuneConfig,
        parts: UserParts,
        run: RunDirectory,
        observer: RunObserver,
        *,
        base_dir: Path | None = None,
    ) -> None:
        """Train until the end, resuming from the run's newest checkpoint if it has one.

        Raises:
            AstuneError: something that only the user can fix; everything up to the last whole step is on disk.
        """
        from astune.trainer.handover_proof import prove_handover
        from astune.trainer.ledger import StepLedger
        from astune.trainer.local import LocalTrainer
        from astune.trainer.policies import Policies
        from astune.trainer.policy import PolicyTrainer
        from astune.trainer.resume_point import ResumePoint

        check_trainable(config, parts)
        observer.on_phase("loading the model")
        order = task_order(config, parts)
        async with open_model(config, PublishedWeights(run.path / "weights"), own=parts.engine) as model:
            require_trainable(model)
            several = bool(config.models)
            policy = (
                Policies.load(folders(config), config, parts.algorithm)
                if several
                else PolicyTrainer.load(model_folder(config), config, parts.algorithm)
            )
            engine = model.engine
            checkpoint, resumed = run.checkpoints.resume_point(observer.on_note), None
            if checkpoint is not None:
                resumed = ResumePoint.read(checkpoint)
                policy.load_state(checkpoint.state)
                order.load_state_dict(resumed.order)
            if model.apart and isinstance(policy, PolicyTrainer):
                observer.on_phase("proving that weights reach the engine")
                await prove_handover(engine, policy)
            elif resumed is not None or several:
                await policy.publish(engine)
            # Nothing that was recorded is moved before everything needed to resume is known to be there.
            kept = rewind(
                run,
                config,
                step=-1 if resumed is None else resumed.step,
                version=policy.version,
                tasks=order.following(config.trainer.tasks_per_step),
                whole_groups=isinstance(parts.judge, GroupJudgeBase),
                origin=origin_of(config, [folder for _, folder in folders(config)], base_dir),
                tell=observer.on_note,
            )
            run.save_vocabulary(model.renderer.vocabulary())
            with run.open_episodes() as episodes, run.open_metrics() as metrics:
                validation_tasks = parts.validation_tasks[: config.trainer.validation.max_tasks]
                ledger = StepLedger(
                    config,
                    episodes=episodes,
                    metrics=metrics,
                    checkpoints=run.checkpoints,
                    n_validation_tasks=len(validation_tasks),
                    resumed=resumed,
                    on_record=observer.on_record,
                )
                trainer = LocalTrainer(
                    config,
                    policy=policy,
                    engine=engine,
                    rollouts=_training(model, parts, Recorder(episodes, observer), kept),
                    order=order,
                    validation_tasks=validation_tasks,
                    ledger=ledger,
                    on_phase=observer.on_phase,
                )
                await trainer.fit()


async def evaluate(config: AstuneConfig, parts: UserParts, observer: RolloutObserver) -> list[EpisodeGroup]:
    """Run every held-out task `validation.num_repeat` times with the weights that the engine has."""
    if not parts.validation_tasks:
        raise ConfigError("there are no held-out tasks to evaluate on", hint=how_to_hold_out(config.task_reader))
    async with open_model(config, own=parts.engine) as opened:
        return await _rollouts(opened, parts, observer).run_groups(
            parts.validation_tasks[: config.trainer.validation.max_tasks],
            step=0,
            split="validation",
        )


async def check_numerics(
    config: AstuneConfig, parts: UserParts, observer: RunObserver, *, steps: int, tasks: int
) -> NumericsReport:
    """Compare the engine's log-probabilities with the trainer's on real rollouts; no file stays."""
    from astune.numerics.check import NumericsCheck
    from astune.trainer.policy import PolicyTrainer

    check_trainable(config, parts)
    if config.engine.quantization != "none":
        raise ConfigError(
            f"engine.quantization is {config.engine.quantization}, and the limits are those of the model's own dtype",
            hint="set it to none for the comparison; train/logprob_diff_mean of a run shows what 8 bits change",
        )
    if config.models:
        raise ConfigError("the comparison is of one policy, and `models` has several", hint="leave `models` out for it")
    if tasks * steps > len(parts.training_tasks):
        raise ConfigError(
            f"{steps} steps of {tasks} tasks need more than the {len(parts.training_tasks)} training tasks",
            hint="take fewer, with --steps and --tasks",
        )
    config = without_learning(config)
    observer.on_phase("loading the model")
    folder = model_folder(config)
    policy = PolicyTrainer.load(folder, config, parts.algorithm)
    # Whether they arrive is what is to be found out, so nothing stops where they do not.
    weights = PublishedWeights(config.record_dir / f".weights-{os.getpid()}", compared=False)
    async with open_model(config, weights, own=parts.engine) as model:
        require_trainable(model)
        if model.apart:  # its own engine: the weights may be loaded into it
            await model.engine.load_weights(policy)
        check = NumericsCheck(
            config,
            policy=policy,
            engine=model.engine,
            rollouts=_rollouts(model, parts, observer),
            order=task_order(config, parts),
            folder=folder,
            on_phase=observer.on_phase,
        )
        return await check.run(steps=steps, tasks=tasks)


def without_learning(config: AstuneConfig) -> AstuneConfig:
    """The same with a learning rate of zero, which a user may not set."""
    return changed(config, trainer={"optim": {"lr": 0.0}})


def check_trainable(config: AstuneConfig, parts: UserParts) -> None:
    """Refuse what could run but not train, before anything expensive starts."""
    check_settings(config)
    require_groups(config, parts.algorithm)
    check_tasks(config, parts)


def check_tasks(config: AstuneConfig, parts: UserParts) -> None:
    """Refuse too few tasks for a step, or tasks that have no order."""
    if len(parts.training_tasks) < config.trainer.tasks_per_step + config.trainer.dynamic_sampling.max_extra_tasks:
        raise ConfigError(
            f"a step takes {config.trainer.tasks_per_step} tasks and up to "
            f"{config.trainer.dynamic_sampling.max_extra_tasks} more, but there are only {len(parts.training_tasks)}",
            hint="add tasks, or lower trainer.tasks_per_step or trainer.dynamic_sampling.max_extra_tasks",
        )
    task_order(config, parts)


def check_settings(config: AstuneConfig) -> None:
    """Refuse what could run but not train, whatever the tasks are."""
    require_policies_answered(config)
    if config.engine.type != "in_process":
        _require_what_servers_can(config)
    if config.rollout.top_p < 1:
        raise ConfigError(
            f"rollout.top_p is {config.rollout.top_p:g}: the probabilities recorded would not be the trained ones",
            hint="set it to 1 for training",
        )


def require_groups(config: AstuneConfig, algorithm: Algorithm) -> None:
    """Refuse groups of one, where episodes are compared, and a temperature, where they are learned as they are."""
    if algorithm.learns_from != "rollouts":
        if config.models:
            raise ConfigError(
                f"astune.models is set, and {config.trainer.algorithm.type} learns from answers that were given: "
                "they are no policy's",
                hint="leave models out, and train one policy with model.lora",
            )
        if config.rollout.temperature != 1.0:
            raise ConfigError(
                f"rollout.temperature is {config.rollout.temperature:g}, and given answers are learned as they are",
                hint="set it to 1; trainer.validation.temperature says how held-out tasks are measured",
            )
    elif config.rollout.num_repeat < 2:
        raise ConfigError(
            "rollout.num_repeat is 1: an episode has no group to be compared with", hint="set it to 8, at least to 2"
        )


def _require_what_servers_can(config: AstuneConfig) -> None:
    """Refuse what only the engine in this process keeps to."""
    if config.constrained_tokens == "replay":
        raise ConfigError(
            f"trainer.loss.constrained_tokens is replay, and engine.type is {config.engine.type}: a server masks "
            "tokens outside a grammar itself, and its masks cannot be recomputed",
            hint="leave it out, so that such tokens are left out of the loss, or train with engine.type: in_process",
        )
    if config.deterministic:
        raise ConfigError(
            f"deterministic is true, and engine.type is {config.engine.type}: a server schedules requests as they come",
            hint="set it to false, or train with engine.type: in_process",
        )


def require_trainable(model: OpenModel) -> None:
    """Refuse an engine that episodes can be run with, but whose record is not what training needs."""
    if model.lacks:
        raise ConfigError(
            f"the engine cannot be trained with: {'; '.join(model.lacks)}",
            hint="engine.type: vllm without engine.base_url starts a server that has all of it, or see "
            "docs/en/engines.md to start one; or train with engine.type: in_process",
        )


def task_order(config: AstuneConfig, parts: UserParts) -> TaskOrder:
    """The order in which a run takes its training tasks, from the start."""
    return TaskOrder(parts.training_tasks, config.seed, config.task_reader.stratify_by, config.task_reader.curriculum)


def _training(
    model: OpenModel, parts: UserParts, observer: RolloutObserver, kept: Sequence[Attempts]
) -> RolloutPool | DemonstrationPool:
    """Training episodes: sampled ones, or those that the tasks bring where the algorithm learns from these."""
    pool = _rollouts(model, parts, observer)
    if parts.algorithm.learns_from == "rollouts":
        pool.keep(kept)
        return pool
    episodes_of = PREFERENCES if parts.algorithm.learns_from == "preferences" else DEMONSTRATIONS
    return DemonstrationPool(pool, model.renderer, model.config, observer, episodes_of)


def _rollouts(model: OpenModel, parts: UserParts, observer: RolloutObserver) -> RolloutPool:
    return RolloutPool(model.engine, model.renderer, parts.workflow, parts.judge, model.config, observer)
