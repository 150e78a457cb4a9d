"""Starting an engine in its own environment, and watching it until the last step is recorded."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import orjson

from astune.backbone.base import RunObserver
from astune.backbone.cluster import ray_cluster
from astune.backbone.cluster.job import EngineResume, Job, StepsToCome
from astune.backbone.cluster.process import EVERYWHERE
from astune.backbone.cluster.reports import ADDRESS, TOKEN
from astune.backbone.cluster.run_server import RunServer
from astune.backbone.cluster.run_writer import RunWriter
from astune.backbone.engines import model_folder
from astune.backbone.parts import UserParts
from astune.config.engine_place import interpreter
from astune.config.schema import AstuneConfig, ClusterEngine, ProgramConfig
from astune.gateway.relay import Relay
from astune.processes.guarded import GuardedProcess
from astune.renderers import load_renderer
from astune.runs import RunDirectory
from astune.schema import ConfigError, DeadlineExceeded, TrainerError
from astune.trainer.ledger import StepLedger
from astune.workflow.workers import TOKEN_VARIABLE, WorkerDoor

STARTS_WITHIN_S = 1800.0
"""A large model is loaded twice, by the trainer and by its servers, and compiled."""
_PLANS_WITHIN_S = 300.0
_LOOKS_S = 0.5
_SHOWN_LINES = 20


async def train(
    engine: ClusterEngine,
    config: AstuneConfig,
    parts: UserParts,
    run: RunDirectory,
    observer: RunObserver,
    *,
    base_dir: Path | None,
) -> None:
    """Train until the end, from the run's newest checkpoint if it has one.

    Raises:
        AstuneError: the run cannot continue, with the cause; everything up to the last whole step is on disk.
    """
    observer.on_phase("loading the model")
    checkpoint = run.checkpoints.resume_point(observer.on_note)
    resumed = None if checkpoint is None else EngineResume.read(checkpoint, engine)
    job = _job(engine, config, parts, base_dir, run.path / "checkpoints" / engine, resumed)
    with _workers_door(config) as relay:
        await _train(job, parts, run, observer, relay)


async def _train(job: Job, parts: UserParts, run: RunDirectory, observer: RunObserver, relay: Relay | None) -> None:
    engine, config, resumed = job.engine, job.config, job.resumed
    # Nothing that was recorded is moved before everything needed to resume is known to be there.
    superseded = run.rewind(-1 if resumed is None else resumed.point.step)
    if superseded is not None:
        observer.on_note(str(superseded))
    run.save_vocabulary(load_renderer(job.model_folder, config.model.path).vocabulary())
    with run.open_episodes() as episodes, run.open_metrics() as metrics:
        ledger = StepLedger(
            config,
            episodes=episodes,
            metrics=metrics,
            checkpoints=run.checkpoints,
            n_validation_tasks=len(job.validation_tasks),
            resumed=None if resumed is None else resumed.point,
            on_record=observer.on_record,
        )
        if ledger.finished:
            return
        job = replace(job, measured=ledger.last_measured)
        job.remove_other_checkpoints()
        server = RunServer(RunWriter(job, ledger, parts.algorithm, episodes, observer), relay)
        async with server.listening(ray_cluster.own_host()) as (address, token):
            log = run.path / "companions" / f"{engine}.log"
            log.parent.mkdir(exist_ok=True)
            environment = {**os.environ, ADDRESS: address, TOKEN: token, **EVERYWHERE}
            environment.pop(TOKEN_VARIABLE, None)  # workers connect here alone
            command = [interpreter(config, engine), "-m", f"astune.backbone.{engine}"]
            process = await asyncio.to_thread(
                lambda: GuardedProcess(engine, command, log, environment=environment, run=str(run.path))
            )
            try:
                await _watched(process, server, config, log)
                server.writer.close()
            finally:
                await asyncio.to_thread(process.close)


@contextmanager
def _workers_door(config: AstuneConfig) -> Iterator[Relay | None]:
    """Listen for `astune worker` during the run; the value is None where no agent is on other machines.

    Raises:
        ConfigError: its address is not free.
    """
    agent = config.rollout.workflow
    if not isinstance(agent, ProgramConfig) or not agent.workers:
        yield None
        return
    with closing(Relay(*WorkerDoor.of(agent))) as relay:
        yield relay


def resolved_plan(engine: ClusterEngine, config: AstuneConfig, parts: UserParts, *, base_dir: Path | None) -> str:
    """The engine's whole configuration of a run, as YAML; the engine itself makes it, and nothing is started.

    Raises:
        ConfigError: a key is none of the installed engine's.
    """
    job = _job(engine, config, parts, base_dir, config.record_dir.resolve(), None)
    asked = subprocess.run(
        [interpreter(config, engine), "-m", f"astune.backbone.{engine}", "plan"],
        input=orjson.dumps(job.work_order().model_dump(mode="json")),
        capture_output=True,
        timeout=_PLANS_WITHIN_S,
        check=False,
    )
    if asked.returncode != 0:
        lines = asked.stderr.decode(errors="replace").strip().splitlines()
        raise ConfigError(lines[-1] if lines else f"{engine}'s configuration ended with status {asked.returncode}")
    return asked.stdout.decode()


def _job(
    engine: ClusterEngine,
    config: AstuneConfig,
    parts: UserParts,
    base_dir: Path | None,
    folder: Path,
    resumed: EngineResume | None,
) -> Job:
    return Job(
        engine,
        config,
        base_dir,
        model_folder(config),
        StepsToCome.of(config, parts.training_tasks, None if resumed is None else resumed.point),
        parts.validation_tasks[: config.trainer.validation.max_tasks],
        folder,
        resumed,
    )


async def _watched(process: GuardedProcess, server: RunServer, config: AstuneConfig, log: Path) -> None:
    """Wait for the end.

    Raises:
        AstuneError: it failed, or reported nothing for too long.
    """
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        loop.call_soon_threadsafe(ended.set)

    process.on_death(end)
    while not ended.is_set() and not server.failed.is_set():
        _require_signs_of_life(server, config)
        await asyncio.sleep(_LOOKS_S)
    if server.failure is not None:
        raise server.failure
    engine, ledger = server.writer.job.engine, server.writer.ledger
    if process.status != 0 or not ledger.finished:
        raise TrainerError(
            f"{engine} ended with status {process.status} after step {ledger.step} of "
            f"{config.trainer.total_steps}; its last lines:\n{_last_lines(log)}",
            hint=f"all of it is in {log}",
        )


def _require_signs_of_life(server: RunServer, config: AstuneConfig) -> None:
    allowed = max(STARTS_WITHIN_S, config.rollout.step_timeout_s)
    if server.silent_s > allowed:
        raise DeadlineExceeded(
            f"{server.writer.job.engine} reported nothing for {allowed:g} s",
            hint="raise rollout.step_timeout_s if a step takes longer",
        )


def _last_lines(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "(it wrote nothing)"
    return "\n".join(lines[-_SHOWN_LINES:])
