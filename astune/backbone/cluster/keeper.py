"""Who keeps the run's folder while an engine trains: hears what happened on the cluster, and writes it down.

It alone writes the run. What is told is JSON over HTTP, an episode is in the wire format of the store; whoever tells
has a token. Books, advantages and metrics are made here from the episodes themselves, as the local trainer makes them.

    GET  /job                               what is to be done
    POST /started /episode /group           by the workers: an attempt begins, has ended; a group is done
    POST /step /validation /phase           by the trainer
    POST /explored /synced /saved           a batch has been run; weights are with the servers, or on the disk
    POST /failed                            by whoever cannot go on
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import orjson
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from astune.algorithm import advantages_of, load_algorithm
from astune.backbone.cluster.job import Job
from astune.config.schema import AstuneConfig
from astune.engine.base import EngineStats
from astune.rollout import RolloutObserver
from astune.rollout.balance import token_balance
from astune.runs import CheckpointStore, EpisodeStore, MetricsLog, balance_metrics, wire
from astune.schema import AstuneError, Episode, EpisodeGroup, TrainerError, TrainingBatch
from astune.trainer.empty_steps import EmptySteps
from astune.trainer.ledger import NO_VARIANCE, require_zero
from astune.trainer.local import TrainingObserver
from astune.trainer.loss import kl_to_start
from astune.trainer.measures import SUCCESS, engine_metrics, episode_metrics, success_of_all
from astune.trainer.mismatch import Mismatch
from astune.trainer.own_logprobs import OwnLogprobs, of_sampled

MIN_CORRELATION = 0.97
"""Of the probabilities that the servers and the trainer give to the same tokens: above 0.999 with the same weights in
float32, some 0.85 after one step whose weights did not arrive. bfloat16 is to stay above it, too."""
_TOKENS_TO_JUDGE = 100
_MOVED_FOR_SURE = 5e-5
"""The sum of learning rates after which a text must be answered otherwise. An optimiser moves a weight by about the
rate, and bfloat16 tells weights of 0.01 apart by 6e-5: servers rightly say the same after a step at 1e-6."""
_RUN_ENDED = "the run ended before its step"


class RunObserver(RolloutObserver, TrainingObserver, Protocol):
    """Is shown what happens."""


@dataclass(frozen=True, slots=True)
class _Group:
    split: str
    group: EpisodeGroup
    stats: EngineStats
    began_at: float
    ended_at: float


class Keeper:
    """Listens, and writes. `failure` is set where the run cannot go on; `finished_steps` is how far it came."""

    def __init__(
        self,
        config: AstuneConfig,
        job: Job,
        *,
        episodes: EpisodeStore,
        metrics: MetricsLog,
        checkpoints: CheckpointStore,
        observer: RunObserver,
        trained_s: float = 0.0,
        success: float | None = None,
    ) -> None:
        self._config = config
        self._job = job
        self._store = episodes
        self._metrics = metrics
        self._checkpoints = checkpoints
        self._observer = observer
        self._trained_s = trained_s
        self._tasks = {("train", task.task_id): task for step in job.steps.tasks for task in step}
        self._tasks |= {("validation", task.task_id): task for task in job.validation_tasks}
        self._episodes: dict[str, Episode] = {}
        self._groups: dict[str, _Group] = {}
        self._began_at: dict[str, float] = {}
        self._moved: dict[int, float] = {}
        self._algorithm = load_algorithm(config, job.base_dir)
        optim = config.trainer.optim
        self._next_lr = optim.lr / (optim.warmup_steps + 1) if job.left_off is None else None
        self._explored: Counter[str] = Counter()
        self._saving, self._scores = asyncio.Lock(), dict[int, float]()
        self._measured = job.measured
        self._empty_steps = EmptySteps()
        self._said_of_text: dict[str, tuple[int, Any]] = {}
        self.failure: AstuneError | None = None
        self.failed = asyncio.Event()
        self.heard_at = time.monotonic()
        self.finished_steps = job.first_step - 1
        self.success = success

    @property
    def engine(self) -> str:
        """Its name."""
        return self._job.engine

    @property
    def finished(self) -> bool:
        """Whether all steps were done and measured, or enough for `trainer.validation.stop_at_success`."""
        last = self._config.trainer.total_steps
        measured = self._measured >= last or not self._job.is_measured(last)
        return (self.finished_steps >= last and measured) or self._enough

    @property
    def _enough(self) -> bool:
        stop = self._config.trainer.validation.stop_at_success
        return stop is not None and self.success is not None and self.success >= stop

    @property
    def _unrated(self) -> set[int]:
        """Steps that are trained and still to be measured, in their order; Trinity's explorer may pass one over."""
        return {step for step in range(self._measured + 1, self.finished_steps + 1) if self._job.is_measured(step)}

    # What the workers say

    async def started(self, said: Any) -> dict[str, Any]:
        self._began_at[said["episode_id"]] = time.monotonic()
        self._observer.on_started(said["episode_id"], self._tasks[said["split"], said["task_id"]])
        return {}

    async def episode(self, blob: bytes) -> dict[str, Any]:
        episode = wire.unpack(blob)
        self._episodes[episode.episode_id] = episode
        self._store.append(episode)
        if episode.status == "error":
            self._observer.on_attempt_failed(episode)
        else:
            self._observer.on_finished(episode)
        return {}

    async def group(self, said: Any) -> dict[str, Any]:
        group = EpisodeGroup(
            self._tasks[said["split"], said["task_id"]],
            [self._episodes.pop(name) for name in said["episodes"]],
            [self._episodes.pop(name) for name in said["failed"]],
            said["dropped"],
        )
        now = time.monotonic()
        began_at = min((self._began_at.pop(name, now) for name in [*said["episodes"], *said["failed"]]), default=now)
        self._groups[said["uid"]] = _Group(said["split"], group, EngineStats(**said["stats"]), began_at, now)
        if said["split"] == "train":
            self._explored[said["uid"].rpartition("/")[0]] += 1
        return {}

    async def explored(self, said: Any) -> dict[str, Any]:
        """All groups of a batch have been told of: one that was lost would be waited for without end."""
        there, wanted = self._explored.pop(str(said["batch"]), 0), self._config.trainer.tasks_per_step
        if there != wanted:
            raise self._lost(wanted - there, wanted, f"batch {said['batch']}")
        return {}

    def _lost(self, n: int, wanted: int, of: str) -> TrainerError:
        return TrainerError(
            f"{self.engine} lost {n} of {wanted} groups of {of}",
            hint=f"a process that ran them died, or took too long; look into {self.engine}'s log",
        )

    # What the trainer says

    async def phase(self, said: Any) -> dict[str, Any]:
        self._observer.on_phase(said["name"])
        return {}

    async def step(self, said: Any) -> dict[str, Any]:
        """Weights have moved: what they moved by is written beside the episodes, and the books are closed."""
        step = int(said["step"])
        taken = [self._groups.pop(uid) for uid in said["groups"]]
        groups = [one.group for one in taken]
        self._empty_steps.look_at(groups, at_start=step == 1)
        used = [group for group in groups if group.dropped is None]
        advantages = advantages_of(self._algorithm, used)
        n_quiet = sum(group.dropped == NO_VARIANCE for group in groups)
        batch = TrainingBatch(step, used, advantages, n_without_variance=n_quiet)
        balance = token_balance(groups, EngineStats(), _sum([one.stats for one in taken]))
        balance.trained = sum(len(row["old_log_probs"]) for row in said["rows"])
        require_zero(balance)
        self._annotate(batch, groups, said["rows"])
        phases = {f"time/{name}_s": float(seconds) for name, seconds in said["phases"].items()}
        self._trained_s += sum(phases.values())
        measures = (
            episode_metrics(groups)
            | _rates(taken)
            | self._trained(step, said["rows"], said["metrics"])
            | phases
            | {f"{self.engine}/{name}": value for name, value in said["metrics"].items() if value is not None}
            | {"time/trained_s": self._trained_s}
            | balance_metrics(balance)
        )
        self._record(step, "train", measures)
        if measures.get("train/grad_norm", 0.0) > 0:
            self._moved[step] = measures.get("train/lr", 0.0)
        self.finished_steps = step
        return {}

    async def validation(self, said: Any) -> dict[str, Any]:
        step = int(said["step"])
        taken = [self._groups.pop(uid) for uid in [*self._groups] if self._groups[uid].split == "validation"]
        if len(taken) != (wanted := len(self._job.validation_tasks)):
            raise self._lost(wanted - len(taken), wanted, f"the measurement after step {step}")
        groups = [one.group for one in taken]
        measures = episode_metrics(groups) | _rates(taken)
        self._empty_steps.look_at(groups, at_start=step == 0)
        expected = len(self._job.validation_tasks) * self._config.trainer.validation.num_repeat
        success = success_of_all(measures, expected)
        measures |= {SUCCESS: success, "time/validation_s": float(said["seconds"])}
        self._record(step, "validation", measures | {"time/trained_s": self._trained_s})
        self.success = self._scores[step] = success
        async with self._saving:
            self._measured = step
            await asyncio.to_thread(self._checkpoints.rate, step, success, unrated=self._unrated)
        return {"success": success, "enough": self._enough}

    async def synced(self, said: Any) -> dict[str, Any]:
        """Servers have taken weights: what each of them says of a fixed text is other than before, if weights moved."""
        version = int(said["version"])
        for server, says in said["servers"].items():
            since, said_before = self._said_of_text.get(server, (version, None))
            if says != said_before:
                self._said_of_text[server] = (version, says)
            elif sum(lr for step, lr in self._moved.items() if since < step <= version) >= _MOVED_FOR_SURE:
                raise TrainerError(
                    f"{server} was given the weights of step {version}, and says of a text what it said before",
                    hint=f"weights do not reach it: look into {self.engine}'s log for where they are given",
                )
        return {}

    async def saved(self, said: Any) -> dict[str, Any]:
        async with self._saving:
            await asyncio.to_thread(self._keep_checkpoint, said)
        return {}

    def _keep_checkpoint(self, said: Any) -> None:
        step = int(said["step"])
        if step != self.finished_steps:
            raise TrainerError(f"a checkpoint of step {step} was saved, and step {self.finished_steps} is the last one")
        self._job.keep_checkpoint(
            self._checkpoints,
            step,
            said["folder"],
            moved=any(self._moved.values()),
            trained_s=self._trained_s,
            score=self._scores.get(step),
            unrated=self._unrated,
        )

    async def failed_with(self, said: Any) -> dict[str, Any]:
        self.fail(TrainerError(said["error"], hint=f"{self.engine}'s log in the run's folder says more"))
        return {}

    def close(self) -> None:
        """Write down of what was run ahead of the end that nothing was learnt from it."""
        ahead = [episode for one in self._groups.values() for episode in one.group.episodes]
        for episode in (*ahead, *self._episodes.values()):
            if episode.split == "train" and episode.status != "error":
                self._store.annotate(episode.episode_id, not_trained=_RUN_ENDED)
        self._store.flush()

    def fail(self, failure: AstuneError) -> None:
        """The first cause is the one that counts."""
        self.failure = self.failure or failure
        self.failed.set()

    # How

    def _annotate(
        self, batch: TrainingBatch, groups: Sequence[EpisodeGroup], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        self._store.annotate_batch(batch)
        logprobs = _by_message(rows)
        for group in groups:
            for episode in group.episodes:
                if group.dropped is not None:
                    self._store.annotate(episode.episode_id, not_trained=group.dropped)
                elif episode.episode_id in logprobs:
                    self._store.annotate_logprobs(episode.episode_id, of_sampled(episode, logprobs[episode.episode_id]))

    def _trained(self, step: int, rows: Sequence[Mapping[str, Any]], theirs: Mapping[str, float]) -> dict[str, float]:
        """The trainer's measures under our names; ends the run where the servers had other weights.

        Probabilities are compared of tokens that the very weights sampled that are trained now.
        """
        if not rows:
            return {}
        ours, engine, entropy, versions = (_joined(rows, name) for name in _COLUMNS)
        mismatch = Mismatch(torch.from_numpy(ours - engine), torch.from_numpy(versions.astype(np.int64)))
        oldest, fresh = int(step - 1 - versions.min()), versions == step - 1
        of_step = mismatch.metrics() | mismatch.metrics_by_age(step - 1)
        of_step |= {"entropy": float(entropy.mean())}
        if _START in rows[0]:
            start = torch.from_numpy(_joined(rows, _START))
            of_step["kl_to_start"] = float(kl_to_start(torch.from_numpy(ours), start).mean())
        correlation = _correlation(np.exp(ours[fresh]), np.exp(engine[fresh]))
        if fresh.any():
            of_step["engine_correlation"] = correlation
        measures = {f"train/{name}": value for name, value in of_step.items()}
        named = {"actor/grad_norm": "grad_norm", "actor/loss": "loss"}
        measures |= {f"train/{name}": theirs[key] for key, name in named.items() if key in theirs}
        if self._next_lr is not None:
            measures["train/lr"] = self._next_lr
        self._next_lr = theirs.get("actor/lr")  # engines say what the next step will have
        if measures.get("train/grad_norm", 0.0) is None:  # JSON has no other word for it
            raise TrainerError(f"in step {step} the gradient is not finite", hint="lower trainer.optim.lr")
        if oldest > self._config.trainer.max_staleness:
            raise TrainerError(
                f"step {step} was given tokens sampled {oldest} steps before, and trainer.max_staleness is "
                f"{self._config.trainer.max_staleness}",
                hint="this is a defect of astune",
            )
        if fresh.sum() >= _TOKENS_TO_JUDGE and not correlation >= MIN_CORRELATION:
            raise TrainerError(
                f"in step {step} the servers' probabilities and the trainer's correlate by {correlation:.3f}: "
                "the servers did not sample with the weights that are trained",
                hint=f"weights do not reach them: look into {self.engine}'s log for where they are given",
            )
        return measures

    def _record(self, step: int, split: Any, measures: dict[str, float]) -> None:
        self._store.flush()
        self._metrics.append(step, split, measures)
        self._observer.on_record(step, split, measures)

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1") -> AsyncIterator[tuple[str, str]]:
        """Its address and token, while it listens."""
        token = secrets.token_urlsafe(24)
        with socket.create_server((host, 0)) as listening:
            port = listening.getsockname()[1]
            server = uvicorn.Server(
                uvicorn.Config(self._app(token), log_level="warning", access_log=False, lifespan="off")
            )
            serving = asyncio.ensure_future(server._serve([listening]))  # without its own handling of signals
            try:
                yield f"http://{host}:{port}", token
            finally:
                server.should_exit = True
                await serving

    def _app(self, token: str) -> Starlette:
        named: dict[str, Callable[[Any], Awaitable[dict[str, Any]]]] = {
            "started": self.started,
            "group": self.group,
            "step": self.step,
            "validation": self.validation,
            "synced": self.synced,
            "explored": self.explored,
            "saved": self.saved,
            "phase": self.phase,
            "failed": self.failed_with,
        }

        def known(request: Request) -> bool:
            said = request.headers.get("authorization", "").removeprefix("Bearer ")
            return secrets.compare_digest(said.encode(), token.encode())

        async def job(request: Request) -> Response:
            return _answer(self._job.told()) if known(request) else _answer({"error": "who asks?"}, 401)

        async def hear(request: Request) -> Response:
            if not known(request):
                return _answer({"error": "who tells this?"}, 401)
            self.heard_at = time.monotonic()
            if self.failure is not None:  # what is told after the cause is its consequence
                return _answer({"error": str(self.failure)}, 409)
            body, what = await request.body(), request.path_params["what"]
            try:
                if what == "episode":
                    return _answer(await self.episode(body))
                return _answer(await named[what](orjson.loads(body)))
            except AstuneError as failure:
                self.fail(failure)
                return _answer({"error": str(failure)}, 409)

        return Starlette(
            routes=[Route("/job", job), Route("/{what}", hear, methods=["POST"])],
            exception_handlers={Exception: self._defect},
        )

    async def _defect(self, request: Request, cause: Exception) -> Response:
        self.fail(
            TrainerError(f"{request.url.path} could not be written down: {cause!r}", hint="this is a defect of astune")
        )
        return _answer({"error": repr(cause)}, 500)


_COLUMNS = ("old_log_probs", "rollout_log_probs", "entropy", "versions")
_START = "ref_log_prob"
"""Told with a KL term."""


def _answer(said: Mapping[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(said), status, media_type="application/json")


def _rates(taken: Sequence[_Group]) -> dict[str, float]:
    """What the servers did for these groups, from the first episode's begin to the last group's end."""
    seconds = max((one.ended_at for one in taken), default=0.0) - min((one.began_at for one in taken), default=0.0)
    return engine_metrics(EngineStats(), _sum([one.stats for one in taken]), max(seconds, 1e-9))


def _sum(each: Sequence[EngineStats]) -> EngineStats:
    return EngineStats(**{field.name: sum(getattr(one, field.name) for one in each) for field in fields(EngineStats)})


def _by_message(rows: Sequence[Mapping[str, Any]]) -> OwnLogprobs:
    found: OwnLogprobs = {}
    for row in rows:
        values = np.asarray(row["old_log_probs"], dtype=np.float32)
        messages, taken = found.setdefault(row["episode"], {}), 0
        for node_id, n_tokens in row["messages"]:
            messages[node_id] = values[taken : taken + n_tokens]
            taken += n_tokens
    return found


def _joined(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Of all rows' tokens."""
    return np.concatenate([np.asarray(row[name], dtype=np.float64) for row in rows])


def _correlation(first: Any, second: Any) -> float:
    """Pearson's; 1 where one of both does not vary, or is empty."""
    if not first.size or first.std() == 0 or second.std() == 0:
        return 1.0
    return float(np.corrcoef(first, second)[0, 1])
