"""Runs under faults: each is a real `astune` command with a real environment service, and is looked over at its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from faulty_wire import FaultyWire
from plans import Plan
from services import Service, until
from warm_commands import STAND_IN, has_warm_process

from astune.processes import scratch
from astune.runs import RunDirectory, balance_of, resolve_run
from astune.schema import AstuneError

ROOT = Path(__file__).parents[2]
STEPS, TASKS, REPEATS = 2, 2, 3
ENDS_WITHIN_S = 240.0
"""Seconds that one start may take; undisturbed and alone it takes two."""
STARTS_WITH_TROUBLE, _MOST_STARTS = 2, 4
"""The trouble is over in the end, as troubles are; then a run that failed has to finish."""
_WARM = [
    "astune.cli.app",
    "astune.app.execution",
    "astune.cli._train",
    "astune.cli._report",
    "astune.cli._plots",
    "astune.backbone.local",
    "astune.trainer.local",
    "astune.engine.local.in_process",
    "astune.gateway.server",
    "astune.env_service.__main__",
    "astune.env_service.client",
    "astune.environments.calculator",
    "astune.task_judge",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.conversion_mapping",
    "transformers.generation.utils",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_svg",
    "matplotlib.backends.backend_agg",
    "openai",
]
"""What a run imports first; what is missing here only takes longer."""


class Nursery:
    """Starts commands; see `nursery.py`."""

    @classmethod
    @asynccontextmanager
    async def open(cls, model: Path) -> AsyncIterator[Nursery]:
        argv = [str(Path(__file__).with_name("nursery.py")), str(model), *_WARM]
        code = f"import runpy, sys; sys.argv = {argv!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
        process = await asyncio.create_subprocess_exec(
            *(STAND_IN.split() if has_warm_process() else [sys.executable]),
            *("-c", code),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
        )
        nursery = cls(process)
        reading = asyncio.ensure_future(nursery._read())
        try:
            await asyncio.wait_for(nursery._ready.wait(), 300)
            yield nursery
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            await process.wait()
            await reading

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ready = asyncio.Event()
        self._begun: asyncio.Queue[int] = asyncio.Queue()
        self._starting = asyncio.Lock()
        self._ended: dict[int, asyncio.Future[int]] = {}

    async def start(self, folder: Path, log: Path, module: str, *arguments: str, **variables: str) -> int:
        order = {"main": module, "argv": ["astune", *arguments], "folder": str(folder), "log": str(log)}
        async with self._starting:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({**order, "variables": variables}).encode() + b"\n")
            return await self._begun.get()

    def ended(self, pid: int) -> asyncio.Future[int]:
        """The exit status of a command, when it has one."""
        return self._ended.setdefault(pid, asyncio.get_running_loop().create_future())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            match json.loads(line):
                case {"pid": pid, "status": status}:
                    self.ended(pid).set_result(status)
                case {"pid": pid}:
                    self._begun.put_nowait(pid)
                case _:
                    self._ready.set()


@dataclasses.dataclass
class Outcome:
    plan: Plan
    seconds: float
    starts: int
    failed_attempts: int
    dropped_tokens: int
    sampled_tokens: int


class Slot:
    """A place in which one run after the other is played, with a service of its own."""

    def __init__(
        self, nursery: Nursery, service: Service, wire: FaultyWire, port: int, folder: Path, model: Path
    ) -> None:
        self._nursery, self._service, self.wire, self._port = nursery, service, wire, port
        self.folder, self.model = folder, model
        self._whole_s = 2.5

    @classmethod
    @asynccontextmanager
    async def open(cls, nursery: Nursery, folder: Path, model: Path, idle_release_s: float = 4) -> AsyncIterator[Slot]:
        await asyncio.to_thread(folder.mkdir)
        service = Service(nursery, folder, idle_release_s)
        await service.start()
        wire = FaultyWire(service.port)
        slot = cls(nursery, service, wire, await wire.open(), folder, model)
        try:
            yield slot
        finally:
            wire.close()
            await service.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def play(self, plan: Plan) -> Outcome:
        """A run with these faults, to its end; raises AssertionError where it did not end as it has to."""
        folder = self.folder / f"seed-{plan.seed}"
        write_experiment(folder, plan, self.url, self.model)
        began, starts = time.monotonic(), 0
        run: RunDirectory | None = None
        with _disk(folder / "launcher_record", plan) as disk:
            while run is None or run.info().status != "finished":
                starts += 1
                assert starts <= _MOST_STARTS, f"not finished after {starts - 1} starts"
                status = await self._start(folder, run, plan, starts)
                disk.grow()
                if not (starts == 1 and (plan.processes in ("kill run", "end run") or plan.disk)):
                    assert status in (0, 1), f"ended with status {status}"
                    assert status == 0 or "error: " in (folder / "log").read_text(), "failed without a cause"
                if status == 1 and plan.disk == "flipped bit":
                    _remove_as_told((folder / "log").read_text())
                run = begun(folder / "launcher_record")
                if starts == 1 and run is not None and run.info().status != "finished":
                    _damage(run, plan)  # what nobody resumes, nobody can repair
            seconds = time.monotonic() - began
            outcome = self._looked_over(run, plan, seconds, starts)
        await self._service.assert_as_before()
        shutil.rmtree(folder)
        return outcome

    async def _start(self, folder: Path, run: RunDirectory | None, plan: Plan, number: int) -> int:
        mark = uuid.uuid4().hex
        self.wire.go_wrong(plan.wire if number <= STARTS_WITH_TROUBLE else (), plan.share, plan.seed + number)
        words = ("--conf", "conf.yaml") if run is None else ("--resume", str(run.path))
        variables = {"CHAOS": mark, "CHAOS_START": str(number), "TMPDIR": str(folder / "tmp")}
        pid = await self._nursery.start(folder, folder / "log", "astune.cli", *words, **variables)
        ended = self._nursery.ended(pid)
        disturbing = asyncio.ensure_future(self._disturb(pid, plan)) if number == 1 else None
        try:
            status = await asyncio.wait_for(asyncio.shield(ended), ENDS_WITHIN_S)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"not at its end after {ENDS_WITHIN_S:g} s") from None
        finally:
            if disturbing is not None:
                await disturbing
        await until(lambda: not processes_of(pid, mark), "the processes of the run to end")
        return status

    async def _disturb(self, pid: int, plan: Plan) -> None:
        what = plan.processes or ("kill run" if plan.disk in ("torn tail", "flipped bit") else "")
        if not what:
            return
        await asyncio.wait([self._nursery.ended(pid)], timeout=plan.after_s / 2.5 * self._whole_s)
        await self.strike(what, pid)

    async def strike(self, what: str, pid: int) -> None:
        """Do to processes what one word of `PROCESSES` says; `pid` is the run's."""
        match what:
            case "kill run" | "end run":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if what == "kill run" else signal.SIGTERM)
            case "kill service":
                await self._service.kill()
                await asyncio.sleep(0.3)
                await self._service.start()
            case "stop service":
                os.kill(self._service.pid, signal.SIGSTOP)
                await asyncio.sleep(1)
                os.kill(self._service.pid, signal.SIGCONT)
            case _:
                self._service.kill_instances()

    def _looked_over(self, run: RunDirectory, plan: Plan, seconds: float, starts: int) -> Outcome:
        tokens = tokens_of(run)
        tmp = Path(run.path).parents[2] / "tmp"
        left = {path.name for path in tmp.iterdir() if not path.name.startswith("astune-tmp-")}
        assert not left, f"left in the folder for temporary files: {left}"
        _sweep(tmp)
        assert not list(tmp.iterdir()), f"not swept: {list(tmp.iterdir())}"
        return Outcome(plan, seconds, starts, *tokens)


def tokens_of(run: RunDirectory) -> tuple[int, int, int]:
    """Failed attempts, dropped tokens and sampled tokens, once each token of each step was found in one account."""
    lines = [line for line in run.metrics() if line.kind == "train"]
    assert [line.step for line in lines] == list(range(1, STEPS + 1)), "each step once"
    balances = [balance_of(line.metrics) for line in lines]
    assert all(balance.difference == 0 for balance in balances), "each token in one account"
    rows = run.episodes().list(split="train")
    failed = [row for row in rows if row.status == "error"]
    assert all(row.error_text for row in failed), "each loss has its cause"
    for line, balance in zip(lines, balances, strict=True):
        stored = sum(row.n_sampled for row in rows if row.step == line.step)
        stored += balance.dropped["cancelled call"]
        assert stored == balance.sampled, f"step {line.step}: {stored} tokens are stored, {balance.sampled} counted"
    assert not any(row.not_trained is None and row.advantages is None for row in rows if row.status != "error")
    dropped = sum(sum(balance.dropped.values()) for balance in balances)
    return len(failed), dropped, sum(balance.sampled for balance in balances)


def write_experiment(
    folder: Path, plan: Plan, url: str, model: Path, *, steps: int = STEPS, engine: Any = None, **rollout: Any
) -> None:
    """A run of that many steps with this plan's agent, against the environment service at `url`."""
    (folder / "tmp").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan.as_json()))
    shutil.copy(Path(__file__).with_name("chaos_agent.py"), folder / "agent.py")
    tasks = [
        {"main_query": f"{n} + 1?", "env_type": "calculator", "metadata": {"answer": str(n + 1), "env_url": url}}
        for n in range(steps * TASKS)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    deadlines = {"call_timeout_s": 6.0, "episode_timeout_s": 15.0, "step_timeout_s": 60.0}
    experiment = {
        "model": {"path": str(model)},
        "engine": engine or {},
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}}},
        "task_judge": {"judge_protocol": "agent.py->Judge"},
        "rollout": {
            "workflow": "agent.py->Solver",
            "max_model_len": 256,
            "max_response_length_in_one_turn": 6,
            "num_repeat": REPEATS,
            **deadlines,
            **rollout,
        },
        "trainer": {"tasks_per_step": TASKS, "total_steps": steps, "save_freq": 1, "optim": {"warmup_steps": 0}},
    }
    (folder / "conf.yaml").write_text(yaml.safe_dump({"astune": experiment}))


class _Disk:
    """The disk of a run's folder: too small at first where the plan says so, and root may make one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def grow(self) -> None:
        if self._folder is not None:
            subprocess.run(["mount", "-o", "remount,size=100m", str(self._folder)], check=True)


@contextlib.contextmanager
def _disk(folder: Path, plan: Plan) -> Iterator[_Disk]:
    if plan.disk != "full disk":
        yield _Disk(None)
        return
    folder.mkdir()
    size = random.Random(plan.seed).randrange(1 << 19, 12 << 20)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield _Disk(folder if mounted else None)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def begun(record: Path) -> RunDirectory | None:
    """The run; None where it was ended before there was anything to resume."""
    try:
        run = RunDirectory.open(resolve_run(record))
    except AstuneError:
        return None
    return run if run.config_path.exists() else None


def _damage(run: RunDirectory, plan: Plan) -> None:
    """What a crash of the machine, or its disk, does to files."""
    rng = random.Random(plan.seed)
    if plan.disk == "torn tail" and (metrics := run.path / "metrics.jsonl").exists():
        whole, saved = metrics.read_bytes(), run.checkpoints.latest()
        durable = [line for line in run.metrics() if saved is not None and line.step <= saved.step]
        torn = len(
            b"".join(whole.splitlines(keepends=True)[len(durable) :])
        )  # lines of a checkpoint were on disk before it
        metrics.write_bytes(whole[: len(whole) - rng.randrange(min(torn, 60) + 1)] + b'{"step": 9, "ki')
    newest = run.checkpoints.latest() if plan.disk == "flipped bit" else None
    if newest is not None:
        files = sorted(path for path in newest.path.rglob("*") if path.is_file() and path.stat().st_size > 1000)
        file = rng.choice(files)
        data = bytearray(file.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)


def _remove_as_told(log: str) -> None:
    """Do what the hint says where the only checkpoint is damaged: a run never begins anew without being told to."""
    told = re.findall(r"the checkpoint (\S+) is damaged: .*\nhint: remove that folder", log)
    if told:
        shutil.rmtree(told[-1], ignore_errors=True)


def _sweep(tmp: Path) -> None:
    """As the next start will, an instant later instead of a minute."""
    new_s, scratch._NEW_S = scratch._NEW_S, -1.0
    try:
        scratch.sweep(tmp)
    finally:
        scratch._NEW_S = new_s


def processes_of(pid: int, mark: str) -> list[int]:
    """Processes of the run's session, and those that were started with its environment."""
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            session = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[3]
            if int(session) == pid or mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found
