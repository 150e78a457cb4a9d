"""The training loop where things fail: outages, and steps that break half way."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_helpers import config, episode, group, node

from astune.config.schema import AstuneConfig
from astune.engine.base import EngineStats
from astune.runs import CheckpointStore, EpisodeStore, RunDirectory
from astune.schema import EngineError, EpisodeGroup, RunStoreError, Split, Task, TokenBalance
from astune.trainer.ledger import StepLedger
from astune.trainer.local import LocalTrainer
from astune.trainer.policy import PolicyTrainer
from astune.trainer.resume_point import ResumePoint

TASKS = [Task(task_id=f"held-out-{number}", main_query="?") for number in range(4)]


class Rollouts:
    """Two answers to one task a step, one of them right; `measured` of the held-out tasks finish, all right."""

    def __init__(self, store: EpisodeStore, measured: int) -> None:
        self.store = store
        self.measured = measured

    async def run_groups(self, tasks: list[Task], *, step: int, split: Split, **_: Any) -> list[EpisodeGroup]:
        if split == "validation":
            done = len(tasks) if step == 0 else self.measured
            return [
                self._group(task, split, step, [float(step > 0)])
                if number < done
                else EpisodeGroup(task, [], dropped="the environment is down")
                for number, task in enumerate(tasks)
            ]
        return [self._group(task, split, step, [1.0, 0.0]) for task in tasks]

    def _group(self, task: Task, split: Split, step: int, rewards: list[float]) -> EpisodeGroup:
        made = group(
            [
                replace(
                    episode([node(0, None, [1, 2, 3]), node(1, 0, [9, 9 + number], sampled=2)], reward=reward),
                    episode_id=f"{split}-{step}-{task.task_id}-{number}",
                    task=task,
                    split=split,
                    step=step,
                )
                for number, reward in enumerate(rewards)
            ]
        )
        for each in made.episodes:
            self.store.append(each)
        return made

    def balance(self, groups: list[EpisodeGroup], counted: EngineStats) -> TokenBalance:
        return TokenBalance(sampled=2 * sum(len(group.episodes) for group in groups), masked=Counter())


class Engine:
    """Takes weights until step `breaks_at`."""

    def __init__(self, breaks_at: int | None) -> None:
        self.breaks_at = breaks_at

    def stats(self) -> EngineStats:
        return EngineStats()

    async def load_weights(self, weights: PolicyTrainer) -> None:
        if weights.version == self.breaks_at:
            raise EngineError("the engine is gone")


class Order:
    def __init__(self) -> None:
        self.taken = 0

    def take(self, n: int) -> list[Task]:
        self.taken += n
        return [Task(task_id=f"train-{self.taken}", main_query="?")]

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}


async def fit(
    folder: Path,
    run: RunDirectory,
    settings: AstuneConfig,
    *,
    measured: int = 4,
    breaks_at: int | None = None,
    resumed: ResumePoint | None = None,
    rollouts: type[Rollouts] = Rollouts,
) -> None:
    with run.open_episodes() as episodes, run.open_metrics() as metrics:
        ledger = StepLedger(
            settings,
            episodes=episodes,
            metrics=metrics,
            checkpoints=run.checkpoints,
            n_validation_tasks=len(TASKS),
            resumed=resumed,
        )
        trainer = LocalTrainer(
            settings,
            policy=PolicyTrainer.load(folder, settings),
            engine=Engine(breaks_at),  # type: ignore[arg-type]
            rollouts=rollouts(episodes, measured),
            order=Order(),
            validation_tasks=TASKS,
            ledger=ledger,
            on_phase=lambda _: None,
        )
        await trainer.fit()


@pytest.mark.parametrize(("measured", "steps"), [(0, 3), (1, 3), (4, 1)])
async def test_an_outage_neither_ends_a_run_nor_chooses_its_best_model(
    small_folder: Path, tmp_path: Path, measured: int, steps: int
) -> None:
    run = RunDirectory.create(tmp_path, "outage")
    settings = config(tasks_per_step=1, total_steps=3, test_freq=1, save_freq=100, validation={"stop_at_success": 0.9})
    await fit(small_folder, run, settings, measured=measured)
    trained = [line.step for line in run.metrics() if line.kind == "train"]
    assert trained == list(range(1, steps + 1))
    best = run.checkpoints.best()
    assert best is not None
    assert best.score == measured / 4


async def test_every_line_of_a_run_measures_its_tokens_against_the_engine(small_folder: Path, tmp_path: Path) -> None:
    """The hand-made episodes all carry weights version 0, so they are one version further behind in every step."""
    run = RunDirectory.create(tmp_path, "measured")
    await fit(small_folder, run, config(tasks_per_step=1, total_steps=3, test_freq=100, save_freq=100))
    lines = [line for line in run.metrics() if line.kind == "train"]
    assert len(lines) == 3
    for line in lines:
        metrics, group = line.metrics, f"train/versions_behind_{line.step - 1}"
        assert metrics["train/weights_version"] == line.step - 1
        assert metrics[f"{group}/tokens"] == metrics["balance/trained"] == 4
        assert metrics[f"{group}/logprob_diff_mean"] == metrics["train/logprob_diff_mean"] > 0
        assert metrics[f"{group}/engine_kl"] == metrics["train/engine_kl"] > 0
        ordered = [metrics[f"train/logprob_diff_{name}"] for name in ("p50", "p90", "p99", "p999", "max")]
        assert ordered == sorted(ordered)
        assert metrics["train/masked_fraction"] == 0
        assert {"train/importance_capped_fraction", "train/clip_fraction", "train/engine_kl_k1"} <= metrics.keys()


async def test_weights_of_a_step_that_broke_half_way_are_not_saved(small_folder: Path, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "broken")
    settings = config(tasks_per_step=1, total_steps=5, test_freq=100, save_freq=2)
    with pytest.raises(EngineError, match="the engine is gone"):
        await fit(small_folder, run, settings, breaks_at=4)
    latest = run.checkpoints.latest()
    assert latest is not None
    assert latest.step == 2
    run.close()


async def test_the_best_model_of_steps_that_a_resume_runs_again_stays_the_best(
    small_folder: Path, tmp_path: Path
) -> None:
    """The process was killed after step 2 was measured, and before anything to resume from was saved."""
    run = RunDirectory.create(tmp_path, "killed")
    run.checkpoints.save(2, model=lambda folder: None, score=0.75)
    moved = run.rewind(-1)
    assert moved is not None
    assert "resuming from the beginning: records of step 2" in str(moved)
    settings = config(tasks_per_step=1, total_steps=2, test_freq=1)
    await fit(small_folder, run, settings, measured=2)
    best, latest = run.checkpoints.best(), run.checkpoints.latest()
    assert best is not None
    assert latest is not None
    assert (best.superseded, best.score, latest.step) == (True, 0.75, 2)


async def test_a_completed_measurement_is_not_made_again_on_resuming(small_folder: Path, tmp_path: Path) -> None:
    """The process died after step 2 was measured and before the best model was kept."""
    run = RunDirectory.create(tmp_path, "measured")
    with run.open_metrics() as metrics:
        metrics.append(2, "validation", {"reward/success_of_all": 0.75})
    settings = config(tasks_per_step=1, total_steps=2, test_freq=1, validation={"stop_at_success": 0.7})
    await fit(small_folder, run, settings, measured=4, resumed=ResumePoint(step=2))
    assert [(line.step, line.kind) for line in run.metrics()] == [(2, "validation")]
    best = run.checkpoints.best()
    assert best is not None
    assert (best.step, best.score) == (2, 0.75)


@pytest.mark.parametrize("save_freq", [1, 100], ids=["due", "at the end"])
async def test_a_model_that_is_the_best_and_due_is_written_once(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_freq: int
) -> None:
    run = RunDirectory.create(tmp_path, "once")
    saved: list[tuple[int, bool]] = []
    save = CheckpointStore.save

    def counted(store: CheckpointStore, step: int, **given: Any) -> Any:
        saved.append((step, given["state"] is not None))
        return save(store, step, **given)

    monkeypatch.setattr(CheckpointStore, "save", counted)
    await fit(small_folder, run, config(tasks_per_step=1, total_steps=1, test_freq=1, save_freq=save_freq))
    best, latest = run.checkpoints.best(), run.checkpoints.latest()
    assert saved == [(0, False), (1, True)]
    assert best is not None
    assert (best, best.step, best.score) == (latest, 1, 1.0)


class WhileItIsWritten:
    """What happens beside the writing of checkpoints, which takes until the next step rolls out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
        self.events: list[str] = []
        self.random: list[Any] = []
        self.random_saved: list[Any] = []
        rolled_out = [threading.Event() for _ in range(last + 1)]
        save, update = CheckpointStore.save, PolicyTrainer.step

        def saved(store: CheckpointStore, step: int, **given: Any) -> Any:
            self.events.append(f"write {step}")
            assert step == last or rolled_out[step + 1].wait(20), "nothing rolls out meanwhile"
            made = save(store, step, **given)
            self.events.append(f"written {step}")
            if given["state"] is not None:
                self.random_saved.append(torch.load(made.state / "trainer_state.pt")["rng"]["cpu"].tolist())
            return made

        def updated(trainer: PolicyTrainer, batch: Any) -> Any:
            self.events.append(f"update {batch.step}")
            report = update(trainer, batch)
            self.random.append(torch.get_rng_state().tolist())
            return report

        class Slow(Rollouts):
            async def run_groups(self, tasks: list[Task], *, step: int, split: Split, **_: Any) -> list[EpisodeGroup]:
                torch.rand(step)
                rolled_out[step].set()
                return await super().run_groups(tasks, step=step, split=split)

        self.rollouts = Slow
        monkeypatch.setattr(CheckpointStore, "save", saved)
        monkeypatch.setattr(PolicyTrainer, "step", updated)


async def test_a_checkpoint_is_written_while_the_next_step_rolls_out_and_before_it_is_learnt_from(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path, "beside")
    beside = WhileItIsWritten(monkeypatch, last=3)
    settings = config(tasks_per_step=1, total_steps=3, save_freq=1, test_freq=100)
    await fit(small_folder, run, settings, measured=0, rollouts=beside.rollouts)
    order = [f"{what} {step}" for step in (1, 2, 3) for what in ("update", "write", "written")]
    assert [event for event in beside.events if not event.endswith(" 0")] == order
    assert beside.random_saved[:2] == beside.random[:2]
    assert beside.random[0] != beside.random[1]
    latest = run.checkpoints.latest()
    assert latest is not None
    assert latest.step == 3
    latest.require_whole("model", "state")


async def test_a_checkpoint_that_cannot_be_written_ends_the_run_before_its_weights_are_replaced(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path, "full")
    save = CheckpointStore.save

    def full(store: CheckpointStore, step: int, **given: Any) -> Any:
        if step == 2:
            raise RunStoreError("the disk is full")
        return save(store, step, **given)

    monkeypatch.setattr(CheckpointStore, "save", full)
    settings = config(tasks_per_step=1, total_steps=5, save_freq=1, test_freq=100)
    with pytest.raises(RunStoreError, match="the disk is full"):
        await fit(small_folder, run, settings)
    latest = run.checkpoints.latest()
    assert latest is not None
    assert latest.step == 1
    assert [line.step for line in run.metrics() if line.kind == "train"] == [1, 2]


async def test_a_last_checkpoint_that_cannot_be_written_is_an_error_of_the_run(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise RunStoreError("the disk is full")

    run = RunDirectory.create(tmp_path, "full")
    monkeypatch.setattr(CheckpointStore, "save", full)
    with pytest.raises(RunStoreError, match="the disk is full"):
        await fit(small_folder, run, config(tasks_per_step=1, total_steps=1, save_freq=1, test_freq=100), measured=0)
