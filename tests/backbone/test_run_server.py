from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from examples import some
from safetensors.torch import save_file
from trainer_helpers import node

from astune.algorithm import load_algorithm
from astune.backbone.cluster.collected import TransitionError
from astune.backbone.cluster.job import EngineResume, Job, StepsToCome
from astune.backbone.cluster.messages import (
    AttemptStarted,
    CheckpointSaved,
    GroupFinished,
    Message,
    PhaseBegan,
    RunFailed,
    StepTrained,
    TasksMeasured,
    TrainedRow,
    WeightsSynced,
)
from astune.backbone.cluster.reports import ReportingObserver, Reports, numbers_of
from astune.backbone.cluster.run_server import MAX_BODY_BYTES, RunServer
from astune.backbone.cluster.run_writer import RunWriter
from astune.config.schema import AstuneConfig
from astune.engine.base import EngineStats
from astune.rollout import NullObserver
from astune.runs import MetricsFollower, MetricsLine, RunDirectory
from astune.schema import Episode, Forest, Reward, RunStoreError, Task, TrainerError
from astune.trainer.ledger import StepLedger
from astune.trainer.resume_point import ResumePoint

TASK = Task("task", "?")
CONFIG = AstuneConfig.model_validate(
    {
        "rollout": {"num_repeat": 2},
        "trainer": {"tasks_per_step": 1, "total_steps": 2, "optim": {"lr": 1e-4, "warmup_steps": 0}},
    }
)
N_TOKENS = 120
ENGINE = [-0.5 - 0.01 * place for place in range(N_TOKENS)]
"""Log-probabilities that the engine recorded."""


class Display(NullObserver):
    def __init__(self) -> None:
        self.phases: list[str] = []

    def on_phase(self, phase: str) -> None:
        self.phases.append(phase)


class Serving(NamedTuple):
    server: RunServer
    reports: Reports
    run: RunDirectory

    @property
    def ledger(self) -> StepLedger:
        return self.server.writer.ledger


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    scores: dict[int, float] | None = None,
    stop_at_success: float | None = None,
    resumed_at: int = 0,
    follower: MetricsFollower | None = None,
    **of_trainer: int,
) -> AsyncIterator[Serving]:
    validation = CONFIG.trainer.validation.model_copy(update={"stop_at_success": stop_at_success})
    trainer = CONFIG.trainer.model_copy(update={"validation": validation, **of_trainer})
    config = CONFIG.model_copy(update={"trainer": trainer})
    steps = StepsToCome([[TASK]] * 4, [{}] * 5)
    resumed = EngineResume(folder / "verl" / "earlier", ResumePoint(resumed_at)) if resumed_at else None
    job = Job("verl", config, None, folder, steps, [TASK], folder / "verl", resumed)
    run = RunDirectory.create(folder, "experiment")
    run.follower = follower
    with run, run.open_episodes() as episodes, run.open_metrics() as metrics:
        for step, score in (scores or {}).items():
            metrics.append(step, "validation", {"reward/success_of_all": score})
        ledger = StepLedger(
            config,
            episodes=episodes,
            metrics=metrics,
            checkpoints=run.checkpoints,
            n_validation_tasks=1,
            resumed=None if resumed is None else resumed.point,
        )
        server = RunServer(RunWriter(job, ledger, load_algorithm(config), episodes, Display()))
        async with server.listening() as (address, token):
            yield Serving(server, Reports(address, token), run)


def episode(repeat: int, reward: float) -> Episode:
    nodes = [node(0, None, [1, 2]), node(1, 0, [3] * N_TOKENS, sampled=N_TOKENS, logprobs=ENGINE)]
    return Episode(
        episode_id=f"train-000001-task-{repeat:03d}-1",
        task=TASK,
        split="train",
        step=1,
        repeat=repeat,
        attempt=1,
        seed=0,
        forest=Forest(nodes),
        status="success",
        reward=Reward(raw_reward=reward, is_success=reward > 0),
    )


def report_group(
    reports: Reports, rewards: tuple[float, float] = (1.0, 0.0), first_repeat: int = 0, **more: Any
) -> list[Episode]:
    episodes = [episode(repeat, reward) for repeat, reward in enumerate(rewards, start=first_repeat)]
    for each in episodes:
        report_episode(reports, each)
    group = {
        "uid": "one",
        "split": "train",
        "task_id": "task",
        "episodes": [each.episode_id for each in episodes],
        "failed": [],
        "dropped": None,
        "stats": EngineStats(prompt_tokens=4, sampled_tokens=2 * N_TOKENS),
    }
    reports.send(GroupFinished.model_validate(group | more))
    return episodes


def report_episode(reports: Reports, each: Episode) -> None:
    reports.send(AttemptStarted(episode_id=each.episode_id, split=each.split, task_id=each.task.task_id))
    reports.episode(each)


def report_step(
    reports: Reports,
    episodes: list[Episode],
    *,
    error: float = 1e-3,
    tokens: int = N_TOKENS,
    grad_norm: float = 0.7,
    groups: Sequence[str] = ("one",),
    step: int = 1,
    version: int = 0,
    lr: float = 1e-4,
) -> None:
    """As an engine's trainer reports it; its log-probabilities are the engine's and an error of two signs."""
    engine = ENGINE[:tokens]
    trainer = [value + (error if place % 2 else -error) for place, value in enumerate(engine)]
    rows = [
        TrainedRow(
            episode=each.episode_id,
            messages=[(1, tokens)],
            versions=[version] * tokens,
            entropy=[0.5] * tokens,
            rollout_log_probs=engine,
            old_log_probs=trainer,
        )
        for each in episodes
    ]
    trained = StepTrained(
        step=step,
        groups=list(groups),
        rows=rows,
        phases={"rollout": 2.0, "train": 1.0, "sync": 0.5},
        metrics={"actor/grad_norm": grad_norm, "actor/lr": lr / 2, "actor/undefined": float("nan")},
        lr=lr,
    )
    reports.send(trained)


async def test_what_the_cluster_reports_is_what_the_run_records(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, reports, run):
        episodes = await asyncio.to_thread(report_group, reports)
        await asyncio.to_thread(report_step, reports, episodes)
        assert server.writer.ledger.step == 1
        [line] = run.metrics()
        assert line.metrics["reward/mean"] == 0.5
        assert line.metrics["train/grad_norm"] == 0.7
        assert line.metrics["train/lr"] == 1e-4  # of this step: the engine's own is of the next one
        assert line.metrics["train/engine_correlation"] > 0.999
        assert line.metrics["train/logprob_diff_mean"] == pytest.approx(1e-3)
        assert line.metrics["balance/trained"] == 2 * N_TOKENS
        with run.episodes() as reader:
            rows = reader.list()
            assert [row.advantages for row in rows] == [[1.0], [-1.0]]
            logprobs = reader.trainer_logprobs(rows[0].episode_id)
            assert logprobs is not None
            assert logprobs[0] == pytest.approx(-0.501)


class Seen:
    def __init__(self) -> None:
        self.lines: list[MetricsLine] = []

    def on_open(self, last_step: int) -> None: ...

    def on_line(self, line: MetricsLine) -> None:
        self.lines.append(line)


async def test_trackers_receive_the_steps_of_a_cluster(tmp_path: Path) -> None:
    seen = Seen()
    async with serving(tmp_path, follower=seen) as (_, reports, run):
        episodes = await asyncio.to_thread(report_group, reports)
        await asyncio.to_thread(report_step, reports, episodes)
        assert [(line.step, line.kind, line.metrics) for line in seen.lines] == [
            (line.step, line.kind, line.metrics) for line in run.metrics()
        ]
        assert [line.step for line in seen.lines] == [1]


async def test_episodes_are_recorded_in_their_order_and_a_failure_is_raised_at_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, reports, run):
        with ThreadPoolExecutor(1) as executor:
            observer = ReportingObserver(reports, "train", executor)
            reported = [episode(repeat, 1.0) for repeat in range(5)]
            for each in reported:
                observer.on_started(each.episode_id, TASK)
                observer.on_finished(each)
            await observer.delivered()
            server.writer.close()
            with run.episodes() as reader:
                assert [row.episode_id for row in reader.list()] == [each.episode_id for each in reported]
            observer.on_started("unknown", replace(TASK, task_id="unknown"))
            with pytest.raises(RunStoreError, match="the task unknown, which is none of train's"):
                await observer.delivered()


async def test_a_group_that_was_dropped_is_accounted_for_with_the_next_step(tmp_path: Path) -> None:
    async with serving(tmp_path, tasks_per_step=2) as (_, reports, run):
        reason = "group incomplete: the server was away"
        other = replace(episode(5, 1.0), episode_id="train-000001-task-005-1")
        await asyncio.to_thread(report_episode, reports, other)
        stats = EngineStats(sampled_tokens=N_TOKENS)
        dropped = GroupFinished(
            uid="two",
            split="train",
            task_id="task",
            episodes=[other.episode_id],
            failed=[],
            dropped=reason,
            stats=stats,
        )
        await asyncio.to_thread(reports.send, dropped)
        episodes = await asyncio.to_thread(report_group, reports)
        await asyncio.to_thread(lambda: report_step(reports, episodes, groups=("one", "two")))
        [line] = run.metrics()
        assert line.metrics["groups/dropped"] == 1
        assert line.metrics["balance/sampled"] == 3 * N_TOKENS
        with run.episodes() as reader:
            assert reader.row(other.episode_id).not_trained == reason


def test_the_report_of_a_step_of_ten_million_tokens_is_accepted() -> None:
    values = torch.rand(1000).double().log().tolist()
    row = TrainedRow(
        episode="train-000001-task-001-1",
        messages=[(1, 1000)],
        versions=[100] * 1000,
        old_log_probs=values,
        rollout_log_probs=values,
        entropy=values,
        ref_log_prob=values,
    )
    step = StepTrained(step=1, groups=["1/0"], rows=[row], phases={}, metrics={}, lr=None)
    assert len(step.model_dump_json()) / 1000 * 10e6 < MAX_BODY_BYTES


async def test_tokens_that_verl_lost_end_the_run(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, reports, run):
        episodes = await asyncio.to_thread(report_group, reports)
        with pytest.raises(RunStoreError, match="the token balance is off by 2"):
            await asyncio.to_thread(lambda: report_step(reports, episodes, tokens=N_TOKENS - 1))
        assert server.failed.is_set()
        assert run.metrics() == []


async def test_servers_with_other_weights_than_the_trainers_are_found_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, reports, _):
        episodes = await asyncio.to_thread(report_group, reports)
        with pytest.raises(RunStoreError, match="did not sample with the weights that are trained"):
            await asyncio.to_thread(lambda: report_step(reports, episodes, error=0.7))
        assert server.failure is not None


async def test_a_gradient_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, reports, run):
        episodes = await asyncio.to_thread(report_group, reports)
        with pytest.raises(RunStoreError, match="the gradient is not finite"):
            await asyncio.to_thread(lambda: report_step(reports, episodes, grad_norm=float("inf")))
        assert server.writer.ledger.step == 0
        assert run.metrics() == []


async def test_tokens_of_older_weights_are_measured_by_age_and_are_no_sign_of_weights_that_did_not_arrive(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, max_staleness=1, resumed_at=3) as (_, reports, run):
        episodes = await asyncio.to_thread(report_group, reports)
        await asyncio.to_thread(lambda: report_step(reports, episodes, error=0.9, step=4, version=2))
        [line] = run.metrics()
        assert line.metrics["train/versions_behind_1/tokens"] == 2 * N_TOKENS
        assert line.metrics["train/versions_behind_1/logprob_diff_mean"] == pytest.approx(0.9)
        assert line.metrics["train/versions_behind_max"] == 1
        assert "train/engine_correlation" not in line.metrics


async def test_tokens_older_than_the_user_allows_end_the_run(tmp_path: Path) -> None:
    async with serving(tmp_path, max_staleness=1, resumed_at=3) as (_, reports, run):
        episodes = await asyncio.to_thread(report_group, reports)
        with pytest.raises(RunStoreError, match="tokens sampled 2 steps before"):
            await asyncio.to_thread(lambda: report_step(reports, episodes, step=4, version=1))
        assert run.metrics() == []


async def test_servers_may_say_the_same_until_they_take_the_weights_that_moved(tmp_path: Path) -> None:
    async with serving(tmp_path, max_staleness=1) as (_, reports, _):
        episodes = await asyncio.to_thread(report_group, reports)
        await asyncio.to_thread(lambda: reports.send(WeightsSynced(version=0, servers={"server 0": [1.0]})))
        await asyncio.to_thread(report_step, reports, episodes)
        await asyncio.to_thread(lambda: reports.send(WeightsSynced(version=0, servers={"server 0": [1.0]})))
        await asyncio.to_thread(lambda: reports.send(WeightsSynced(version=1, servers={"server 0": [1.5]})))
        await asyncio.to_thread(lambda: reports.send(WeightsSynced(version=0, servers={"server 1": [2.0]})))
        with pytest.raises(RunStoreError, match="the weights of step 1"):
            await asyncio.to_thread(lambda: reports.send(WeightsSynced(version=1, servers={"server 1": [2.0]})))


async def test_servers_that_say_the_same_after_new_weights_are_found_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, reports, _):

        def sync(version: int, *says: float) -> None:
            reports.send(WeightsSynced(version=version, servers={"server 0": [*says]}))

        await asyncio.to_thread(sync, 0, 1.0, -0.5)
        await asyncio.to_thread(sync, 0, 1.0, -0.5)  # nothing was trained meanwhile
        episodes = await asyncio.to_thread(report_group, reports)
        await asyncio.to_thread(report_step, reports, episodes)
        with pytest.raises(RunStoreError, match="server 0 was given the weights of step 1, and its log-prob"):
            await asyncio.to_thread(sync, 1, 1.0, -0.5)


async def test_servers_may_say_the_same_after_steps_too_small_for_bfloat16(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, reports, _):

        def train(step: int) -> None:
            episodes = report_group(reports, first_repeat=2 * step)
            report_step(reports, episodes, step=step, version=step - 1, lr=2e-5)
            reports.send(WeightsSynced(version=step, servers={"server 0": [1.0]}))

        await asyncio.to_thread(lambda: reports.send(WeightsSynced(version=0, servers={"server 0": [0.5]})))
        for step in (1, 2, 3):
            await asyncio.to_thread(train, step)
        with pytest.raises(RunStoreError, match="was given the weights of step 4"):
            await asyncio.to_thread(train, 4)


async def test_what_was_run_ahead_of_the_end_is_said_to_be_untrained(tmp_path: Path) -> None:
    async with serving(tmp_path, max_staleness=1) as (server, reports, run):
        trained = await asyncio.to_thread(report_group, reports)
        await asyncio.to_thread(report_step, reports, trained)
        ahead = await asyncio.to_thread(lambda: report_group(reports, first_repeat=2, uid="two"))
        alone = replace(episode(4, 1.0), episode_id="train-000002-task-004-1")
        await asyncio.to_thread(report_episode, reports, alone)
        server.writer.close()
        with run.episodes() as reader:
            why = {row.episode_id: row.not_trained for row in reader.list()}
    assert {why[each.episode_id] for each in trained} == {None}
    assert {why[each.episode_id] for each in (*ahead, alone)} == {"the run ended before its step"}


def save_theirs(folder: Path, weight: torch.Tensor) -> None:
    """A checkpoint as verl's FSDP saves it, in float32 and with another dtype in its configuration."""
    saved = folder / "theirs" / "actor" / "huggingface"
    saved.mkdir(parents=True)
    save_file({"weight": weight}, saved / "model.safetensors")
    (saved / "config.json").write_text('{"model_type": "llama", "dtype": "bfloat16"}')


@pytest.mark.parametrize("trained", [True, False])
async def test_a_checkpoint_with_the_weights_of_the_beginning_ends_the_run(tmp_path: Path, trained: bool) -> None:
    save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors")
    save_theirs(tmp_path, torch.ones(3) * (1 + trained / 100))
    async with serving(tmp_path) as (_, reports, run):
        episodes = await asyncio.to_thread(report_group, reports)
        await asyncio.to_thread(report_step, reports, episodes)

        def save() -> None:
            reports.send(CheckpointSaved(step=1, folder=str(tmp_path / "theirs"), dtype="float32"))

        if trained:
            await asyncio.to_thread(save)
            newest = run.checkpoints.latest()
            assert newest is not None
            config = json.loads((newest.model / "config.json").read_text())
            assert config == {"model_type": "llama", "dtype": "float32"}  # what the servers sampled in
        else:
            with pytest.raises(RunStoreError, match="are those that the run began with"):
                await asyncio.to_thread(save)
            assert run.checkpoints.latest() is None


def measure(reports: Reports, step: int, reward: float) -> None:
    measured = replace(episode(step, reward), episode_id=f"held-{step}", split="validation")
    report_episode(reports, measured)
    group = GroupFinished(
        uid=f"held-{step}",
        split="validation",
        task_id="task",
        episodes=[measured.episode_id],
        failed=[],
        dropped=None,
        stats=EngineStats(sampled_tokens=N_TOKENS),
    )
    reports.send(group)
    reports.send(TasksMeasured(step=step, seconds=1.0))


async def test_a_checkpoint_is_rated_by_the_measurement_of_its_step_whichever_comes_first(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors")
    save_theirs(tmp_path, torch.zeros(3))

    def report(reports: Reports) -> None:
        report_step(reports, report_group(reports))
        reports.send(CheckpointSaved(step=1, folder=str(tmp_path / "theirs"), dtype="float32"))
        measure(reports, 1, 1.0)
        measure(reports, 2, 0.0)
        report_step(reports, report_group(reports, first_repeat=2), step=2, version=1)
        reports.send(CheckpointSaved(step=2, folder=str(tmp_path / "theirs"), dtype="float32"))

    async with serving(tmp_path) as (_, reports, run):
        await asyncio.to_thread(report, reports)
        assert [(each.step, each.score) for each in run.checkpoints.list()] == [(1, 1.0), (2, 0.0)]


async def test_a_checkpoint_waits_for_its_measurement_while_later_ones_are_saved(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors")
    save_theirs(tmp_path, torch.zeros(3))

    def train(reports: Reports, step: int) -> None:
        report_step(reports, report_group(reports, first_repeat=2 * step), step=step, version=step - 1)
        reports.send(CheckpointSaved(step=step, folder=str(tmp_path / "theirs"), dtype="float32"))

    async with serving(tmp_path, test_freq=1) as (server, reports, run):
        await asyncio.to_thread(train, reports, 1)
        await asyncio.to_thread(train, reports, 2)
        await asyncio.to_thread(measure, reports, 1, 1.0)
        assert [(each.step, each.score) for each in run.checkpoints.list()] == [(1, 1.0), (2, None)]
        assert not server.writer.ledger.finished
        await asyncio.to_thread(measure, reports, 2, 0.0)
        best = run.checkpoints.best()
        assert best is not None
        assert (best.step, server.writer.ledger.finished) == (1, True)


async def test_what_an_earlier_process_measured_as_enough_ends_the_run(tmp_path: Path) -> None:
    async with serving(tmp_path, scores={0: 0.9}, stop_at_success=0.9) as (server, _, _):
        assert server.writer.ledger.finished
    async with serving(tmp_path / "other", scores={0: 0.8}, stop_at_success=0.9) as (server, _, _):
        assert not server.writer.ledger.finished


async def test_a_measurement_of_which_groups_are_missing_is_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, reports, run):
        with pytest.raises(RunStoreError, match="verl lost 1 of 1 groups of the measurement after step 0"):
            await asyncio.to_thread(lambda: reports.send(TasksMeasured(step=0, seconds=1.0)))
        assert not run.metrics()


async def test_callers_without_the_token_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, reports, _):
        stranger = Reports(reports.address, "guessed")
        with pytest.raises(RunStoreError, match="the token is missing or wrong"):
            await asyncio.to_thread(stranger.work_order)
        with pytest.raises(RunStoreError, match="the token is missing or wrong"):
            await asyncio.to_thread(lambda: stranger.send(RunFailed(error="gone")))
        assert not server.failed.is_set()
        order = await asyncio.to_thread(reports.work_order)
        assert [group.first_repeat for group in order.training] == [0, 0, 0, 0]


async def test_a_malformed_report_ends_the_run(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, reports, _):
        with pytest.raises(RunStoreError, match="a report of the kind group could not be read"):
            await asyncio.to_thread(lambda: reports.send(GroupFinished.model_construct(uid="one")))
        assert isinstance(server.failure, TrainerError)


async def test_a_failure_that_a_process_reports_ends_the_run_with_its_own_words(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, reports, _):
        await asyncio.to_thread(reports.send, RunFailed(error="CUDA out of memory"))
        await server.failed.wait()
        assert "CUDA out of memory" in str(server.failure)
        with pytest.raises(RunStoreError, match="CUDA out of memory"):
            await asyncio.to_thread(reports.send, PhaseBegan(name="train"))


ONE = episode(0, 1.0)
STARTED = AttemptStarted(episode_id=ONE.episode_id, split="train", task_id="task")
GROUPED = GroupFinished(
    uid="one",
    split="train",
    task_id="task",
    episodes=[ONE.episode_id],
    failed=[],
    dropped=None,
    stats=EngineStats(sampled_tokens=N_TOKENS),
)


@pytest.mark.parametrize(
    "sent",
    some(
        [
            [ONE],
            [STARTED, ONE, ONE],
            [STARTED, ONE, STARTED],
            [STARTED, GROUPED],
            [STARTED, ONE, GROUPED, ONE],
            [STARTED, ONE, GROUPED, GROUPED],
        ],
        2,
    ),
)
async def test_a_report_out_of_order_ends_the_run(tmp_path: Path, sent: list[Message | Episode]) -> None:
    def send(reports: Reports, what: Message | Episode) -> None:
        if isinstance(what, Episode):
            reports.episode(what)
        else:
            reports.send(what)

    async with serving(tmp_path) as (server, reports, _):
        *legal, illegal = sent
        for each in legal:
            await asyncio.to_thread(send, reports, each)
        with pytest.raises(RunStoreError, match=f"reported the attempt {ONE.episode_id} as"):
            await asyncio.to_thread(send, reports, illegal)
        assert isinstance(server.failure, TransitionError)


async def test_a_group_that_is_reported_again_ends_the_run(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, reports, _):
        await asyncio.to_thread(report_group, reports)
        with pytest.raises(RunStoreError, match="verl reported the group one again"):
            await asyncio.to_thread(lambda: report_group(reports, first_repeat=2))
        assert isinstance(server.failure, TransitionError)


async def test_a_worker_that_died_may_begin_an_attempt_anew(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, reports, _):
        await asyncio.to_thread(reports.send, STARTED)
        await asyncio.to_thread(report_episode, reports, ONE)
        await asyncio.to_thread(reports.send, GROUPED)
        assert server.failure is None


def test_what_would_be_taken_for_the_runs_own_is_no_metric_of_an_engine() -> None:
    given = {"critic/rewards/mean": 0.0, "actor/lr": 1e-4, "actor/model": "small", "perf/mfu": np.float32(0.5)}
    assert numbers_of(given, without=("critic/",)) == {"actor/lr": 1e-4, "perf/mfu": 0.5}


async def test_a_step_is_reported_once_and_none_is_left_out(tmp_path: Path) -> None:
    for step in (0, 2):
        async with serving(tmp_path / str(step)) as (_, reports, _run):
            episodes = await asyncio.to_thread(report_group, reports)
            with pytest.raises(RunStoreError, match=f"verl reported step {step} after step 0"):
                await asyncio.to_thread(lambda: report_step(reports, episodes, step=step))  # noqa: B023


async def test_other_reports_do_not_wait_for_a_step_and_what_is_recorded_keeps_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, others_received = threading.Event(), threading.Event()
    async with serving(tmp_path) as (server, reports, run):
        record = server.writer.ledger.record_step

        def record_slowly(*arguments: Any, **named: Any) -> dict[str, float]:
            began.set()
            assert others_received.wait(10)
            return record(*arguments, **named)

        monkeypatch.setattr(server.writer.ledger, "record_step", record_slowly)
        episodes = await asyncio.to_thread(report_group, reports)
        step = asyncio.create_task(asyncio.to_thread(report_step, reports, episodes))
        assert await asyncio.to_thread(began.wait, 10)
        measurement = asyncio.create_task(asyncio.to_thread(measure, reports, 1, 1.0))
        await asyncio.to_thread(report_group, reports, first_repeat=2, uid="two")
        await asyncio.to_thread(reports.send, PhaseBegan(name="rollout"))
        server.last_report_at -= 1e6
        assert server.silent_s == 0  # the engine waits for what is recorded
        others_received.set()
        await asyncio.gather(step, measurement)
        assert server.silent_s < 1e6
        assert [(line.step, line.kind) for line in run.metrics()] == [(1, "train"), (1, "validation")]


@pytest.mark.parametrize("groups", [(), ("one",)])
async def test_a_step_without_all_of_its_groups_ends_the_run(tmp_path: Path, groups: tuple[str, ...]) -> None:
    async with serving(tmp_path, tasks_per_step=2) as (_, reports, run):
        episodes = await asyncio.to_thread(report_group, reports)
        await asyncio.to_thread(report_group, reports, first_repeat=2, uid="two")
        with pytest.raises(RunStoreError, match=f"verl lost {2 - len(groups)} of 2 groups of step 1"):
            await asyncio.to_thread(lambda: report_step(reports, episodes, groups=groups))
        assert run.metrics() == []


async def test_a_step_of_groups_that_were_never_reported_ends_the_run(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, reports, run):
        episodes = await asyncio.to_thread(report_group, reports)
        with pytest.raises(RunStoreError, match="trained the group two, which was not reported"):
            await asyncio.to_thread(lambda: report_step(reports, episodes, groups=("one", "two")))
        assert run.metrics() == []


async def test_a_name_that_was_pointed_here_and_a_body_without_end_are_refused(tmp_path: Path) -> None:
    def status(address: str, path: str, **headers: str) -> int:
        connection = HTTPConnection(address.removeprefix("http://"), timeout=30)
        connection.putrequest("POST", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        with closing(connection):
            return connection.getresponse().status

    async with serving(tmp_path) as (server, reports, _), server.listening() as (address, token):
        known = {"Authorization": f"Bearer {token}"}
        assert await asyncio.to_thread(status, address, "/episode", Host="evil.example", **known) == 403
        assert await asyncio.to_thread(status, address, "/episode", Content_Length=str(2**40), **known) == 413
        assert not server.failed.is_set()
        assert await asyncio.to_thread(reports.work_order)
