"""The debug backbone: a few episodes in one plain process, and nothing is trained.

All user code runs in the thread that started the process, so that a debugger steps through it as through any program;
only an ordinary (not async) `execute` has a thread of its own, and then one episode runs at a time. Deadlines are a
day, so that a breakpoint does not end an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from astune.backbone.base import Backbone, RunObserver
from astune.backbone.engines import open_model
from astune.backbone.memory import Estimate, ModelShape, engine_memory
from astune.backbone.parts import UserParts
from astune.backbone.plan import agent, folder_of, known_when_asked
from astune.backbone.recorder import Recorder
from astune.config.schema import AstuneConfig
from astune.config.strict import changed
from astune.renderers.text_renderer import TextRenderer
from astune.rollout import RolloutObserver, RolloutPool
from astune.runs import RunDirectory
from astune.schema import EpisodeGroup, stepped
from astune.trainer.batch import drop_untrained
from astune.trainer.ledger import RolloutResult, StepLedger
from astune.trainer.measures import PhaseClock

NOT_TRAINED = "debug run"
_A_DAY_S = 86_400.0


class DebugBackbone(Backbone):
    """A few episodes, by `debug` of this module; nothing is trained."""

    trains: ClassVar[bool] = False

    def plan(
        self,
        config: AstuneConfig,
        parts: UserParts,
        *,
        run_path: Path | None = None,
        memory: Sequence[Estimate] = (),
        starts_ray: bool = False,
    ) -> list[tuple[str, str]]:
        n_tasks, first_n = len(parts.training_tasks), config.debug.debug_first_n_tasks
        tasks = f"the first {min(first_n, n_tasks)} of {n_tasks} training tasks"
        if not n_tasks:
            tasks = f"the first {first_n} {known_when_asked(config)}"
        at_once = config.debug.debug_max_parallel if parts.workflow.is_async() else 1
        return [
            ("backbone", f"debug: nothing is trained, one thread, no deadlines; answers from {config.model.path}"),
            *agent(config),
            ("episodes", f"{tasks}, one episode each, {at_once} at once"),
            ("saved", f"in {folder_of(config)}"),
        ]

    def memory(self, config: AstuneConfig, shape: ModelShape, *, on_gpu: bool, in_bfloat16: bool) -> list[Estimate]:
        return [engine_memory(config, shape, on_gpu=on_gpu, in_bfloat16=in_bfloat16)]

    async def train(
        self,
        config: AstuneConfig,
        parts: UserParts,
        run: RunDirectory,
        observer: RunObserver,
        *,
        base_dir: Path | None = None,
    ) -> None:
        await debug(config, parts, run, observer, observer.on_note)


async def debug(
    config: AstuneConfig,
    parts: UserParts,
    run: RunDirectory,
    observer: RolloutObserver,
    tell: Callable[[str], None] = lambda _: None,
) -> list[EpisodeGroup]:
    """Run the first training tasks, one episode each; each is recorded as in training.

    Args:
        tell: is given a line where nothing of it could be trained.
    """
    config = unhurried(config, parts)
    clock = PhaseClock(lambda _: None)
    async with open_model(config, own=parts.engine) as model:
        engine = model.engine
        if isinstance(model.renderer, TextRenderer):
            tell(
                "the endpoint gives text only: episodes are recorded in characters, and nothing of them can be trained"
            )
        run.save_vocabulary(model.renderer.vocabulary())
        with run.open_episodes() as episodes, run.open_metrics() as metrics, stepped():
            recorder = Recorder(episodes, observer)
            pool = RolloutPool(engine, model.renderer, parts.workflow, parts.judge, model.config, recorder)
            ledger = StepLedger(
                config, episodes=episodes, metrics=metrics, checkpoints=run.checkpoints, n_validation_tasks=0
            )
            before = engine.stats()
            with clock.phase("rollout"):
                groups = await pool.run_groups(
                    parts.training_tasks[: config.debug.debug_first_n_tasks],
                    step=ledger.step,
                    split="train",
                    num_repeat=1,
                )
            counted = engine.stats() - before
            drop_untrained(groups, NOT_TRAINED)
            rollouts = RolloutResult(groups, counted, clock.seconds["rollout"], pool.balance(groups, counted))
            ledger.record_untrained(rollouts, seconds=clock.seconds)
    return groups


def unhurried(config: AstuneConfig, parts: UserParts) -> AstuneConfig:
    """The same, run as debugging needs it: every failure is shown at once, and no deadline ends an episode at a
    breakpoint."""
    return changed(
        config,
        rollout={
            "max_env_worker": config.debug.debug_max_parallel if parts.workflow.is_async() else 1,
            "max_attempts": 1,
            "call_timeout_s": _A_DAY_S,
            "episode_timeout_s": _A_DAY_S,
            "step_timeout_s": _A_DAY_S,
        },
    )
