"""Calls to a gateway in a process of its own that is killed, as its workers are, beside faults of the wire.

`make faults-gateway N=100000 SEED=0`. Every answer of the scripted engine is a text of its own, so that one that is
sampled, recorded or sent twice shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chaos_report import write_section
from faulty_client import FaultyClient, converse
from ports import free_port
from waiting import eventually

from astune.renderers import Renderer

pytestmark = pytest.mark.slow
N = int(os.environ.get("STORM_N", "600"))
"""Calls of both tests together."""
SEED = int(os.environ.get("STORM_SEED", "0"))
REPORT = os.environ.get("CHAOS_REPORT")
SHARE = 0.05 if N >= 10_000 else 0.3
"""Attempts that meet a fault of the wire."""
GATEWAY_KILLS = max(2, N // 10_000)
WORKER_KILLS = max(2, N // 5_000)
CLIENTS = 16
WORKERS = 2
CALLS = min(100, N // 20)
"""Calls of an episode."""
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ASKED = {"role": "user", "content": "?"}
TOKEN = "a secret of the whole storm"
Line = dict[str, Any]


@dataclass
class Storm:
    """The processes of one test, and the files that they leave."""

    folder: Path
    model: Path
    port: int
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    n_sampled: int = 0
    _read: int = 0

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        paths = map(str, (ROOT, ROOT / "tests" / "rollout"))
        more = {"PYTHONPATH": os.pathsep.join(paths), "ASTUNE_WORKER_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=self.folder, env=os.environ | more, stdout=log, stderr=log
            )
        self.started.append(process)
        return process

    def gateway(self, mode: str, *rest: str) -> subprocess.Popen[bytes]:
        return self.start(str(HERE / "storm_gateway.py"), mode, str(self.model), ".", str(self.port), *rest)

    def worker(self) -> subprocess.Popen[bytes]:
        connect = ("--connect", f"http://127.0.0.1:{self.port}", "--parallel", "2", "--")
        agent = (str(HERE / "storm_agent.py"), str(CALLS), str(SEED), str(SHARE))
        return self.start("-m", "astune", "worker", *connect, sys.executable, *agent)

    def has_sampled(self, n: int) -> bool:
        """Whether the engines wrote so many answers down."""
        with (self.folder / "sampled.jsonl").open("rb") as lines:
            lines.seek(self._read)
            new = lines.read()
        self._read += len(new)
        self.n_sampled += new.count(b"\n")
        return self.n_sampled >= n

    def lines(self, name: str) -> list[Line]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def storm(tmp_path: Path, smol_folder: Path) -> Any:
    for name in ("sampled.jsonl", "episodes.jsonl"):
        (tmp_path / name).touch()
    storm = Storm(tmp_path, smol_folder, free_port())
    yield storm
    for process in storm.started:
        process.kill()
        process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it had ended before"


def ids_of(renderer: Any, text: str) -> list[int]:
    return renderer.answer_ids([ASKED, {"role": "assistant", "content": text}], [])


def life_of(text: str) -> str:
    return text.rpartition(" ")[2]


def test_answers_on_disk_outlive_the_gateway_and_each_call_has_one(storm: Storm, renderer: Renderer) -> None:
    rng, met, began = random.Random(SEED), Counter[str](), time.monotonic()
    keys = [f"astune-storm-{number:032d}" for number in range(CLIENTS)]
    gateway = storm.gateway("served", *keys)
    n_calls = N // 2 // CLIENTS

    async def one(number: int, key: str) -> list[str]:
        own = random.Random(f"{SEED} {number}")
        url = f"http://127.0.0.1:{storm.port}/v1"
        client = FaultyClient(url, key, own, met, share=SHARE, outlives=True)
        return await converse(client, f"client {number}", n_calls, own)

    async def killed() -> list[str]:
        nonlocal gateway
        playing = asyncio.gather(*(one(number, key) for number, key in enumerate(keys)))
        for at in sorted(rng.randrange(n_calls * CLIENTS) for _ in range(GATEWAY_KILLS)):
            there = lambda at=at: playing.done() or storm.has_sampled(at)  # noqa: E731
            await asyncio.to_thread(eventually, there, f"answer {at}", timeout_s=600)
            if playing.done():
                await playing  # a client failed
            kill(gateway)
            gateway = storm.gateway("served", *keys)
        return [text for said in await playing for text in said]

    received = asyncio.run(killed())
    kill(gateway)
    sampled = storm.lines("sampled.jsonl")
    by_text = {renderer.decode(line["tokens"][:-1]): line for line in sampled if "tokens" in line}  # type: ignore[attr-defined]
    assert len(by_text) == sum("tokens" in line for line in sampled), "no answer is like another"
    rows = sqlite3.connect(storm.folder / "answers").execute("SELECT sampled FROM answers").fetchall()
    kept = {answer["message"]["content"]: answer for (row,) in rows for answer in json.loads(row)}
    assert len(set(received)) == len(received) == n_calls * CLIENTS, "each call has an answer of its own"
    assert len(rows) == len(kept), "no answer is kept twice"
    assert kept.keys() == set(received), "what is kept was received, and nothing else"
    for text in received:
        assert by_text[text]["tokens"] == ids_of(renderer, text)
        assert by_text[text]["logprobs"] == kept[text]["logprobs"]
    lost = Counter(life_of(text) for text in by_text.keys() - kept.keys())
    assert all(n <= CLIENTS for n in lost.values()), "what a kill takes was on its way"
    assert max(map(life_of, by_text)) not in lost, "the last life was killed when nothing was on its way"
    assert met.total() - met["none"] >= N // 100
    killed_too = {"SIGKILL of the gateway": GATEWAY_KILLS}
    report("answers kept on disk", len(received), time.monotonic() - began, met + Counter(killed_too), lost.total())


def test_episodes_of_killed_workers_and_gateways_are_trained_once(storm: Storm, renderer: Renderer) -> None:
    rng, began, n_episodes, life = random.Random(SEED), time.monotonic(), N // 2 // CALLS, 0
    workers = [storm.worker() for _ in range(WORKERS)]
    victims = rng.sample(["gateway"] * GATEWAY_KILLS + ["worker"] * WORKER_KILLS, GATEWAY_KILLS + WORKER_KILLS)
    moments = sorted(rng.randrange(n_episodes * CALLS) for _ in victims)
    gateway = storm.gateway("trained", str(n_episodes), str(life))
    for at, victim in zip(moments, victims, strict=True):
        eventually(lambda at=at: storm.has_sampled(at), f"answer {at}", timeout_s=600)
        if victim == "worker":
            number = rng.randrange(WORKERS)
            kill(workers[number])
            workers[number] = storm.worker()
            continue
        kill(gateway)
        life += 1
        gateway = storm.gateway("trained", str(n_episodes), str(life))
    assert gateway.wait() == 0, (storm.folder / "log").read_text()[-4000:]
    *episodes, end = storm.lines("episodes.jsonl")
    assert (end["kind"], end["difference"]) == ("end", 0)
    trained = [line for line in episodes if line["kind"] == "trained"]
    assert sorted(line["task"] for line in trained) == sorted(f"t{number}" for number in range(n_episodes))
    by_session = defaultdict[str, list[Line]](list)
    for line in storm.lines("sampled.jsonl"):
        by_session[line["session"]].append(line)
    met, texts = Counter[str](), set[str]()
    for line in episodes:
        recorded, written = line["recorded"], by_session[line["session"]]
        answers = [[each["tokens"], each["logprobs"]] for each in written if "tokens" in each]
        assert sorted(recorded.values()) == sorted(answers), "what is sampled is recorded, and nothing else"
        assert all(ids == ids_of(renderer, text) for text, (ids, _) in recorded.items())
        assert texts.isdisjoint(recorded), "an answer is recorded twice"
        texts |= recorded.keys()
        if line["kind"] == "trained":
            assert (line["status"], line["faults"], len(recorded)) == ("success", [], CALLS)
            assert sorted(recorded) == sorted(line["said"]["said"]), "the agent was answered what is trained"
            met.update({fault: int(n) for fault, n in line["said"]["met"].items()})
    sessions = {kind: {line["session"] for line in episodes if line["kind"] == kind} for kind in ("trained", "dropped")}
    gone = by_session.keys() - sessions["trained"] - sessions["dropped"]
    assert sessions["trained"].isdisjoint(sessions["dropped"])
    assert not any(f"-{life:06d}-" in session for session in gone), "the last life accounts for all of its episodes"
    assert met.total() - met["none"] >= N // 100
    n_lost = sum(len(by_session[session]) for session in gone | sessions["dropped"])
    killed = {"SIGKILL of the gateway": GATEWAY_KILLS, "SIGKILL of a worker": WORKER_KILLS}
    report("episodes of workers", n_episodes * CALLS, time.monotonic() - began, met + Counter(killed), n_lost)


_ROWS: list[str] = []


def report(what: str, n_calls: int, seconds: float, met: Counter[str], n_lost: int) -> None:
    """Add a row to the section of benchmarks/results/chaos.md."""
    faults = ", ".join(f"{n:,} {fault}" for fault, n in sorted(met.items()) if fault not in ("none", "gateway dead"))
    _ROWS.append(f"| {what} | {n_calls:,} | {faults} | {n_lost:,} | {seconds / 60:.1f} |")
    if REPORT:
        head = [
            "A gateway in a process of its own, a scripted engine, and clients over sockets that send again as SDKs do "
            f"(seed {SEED}). Every call has one answer, which no other call has; it is the one that was sampled, kept "
            "and sent, token for token, and all sampled tokens are accounted for.",
            "",
            "| calls of | calls | faults | answers that a kill took, and that were sampled anew | minutes |",
            "|---|---|---|---|---|",
        ]
        write_section(Path(REPORT), "make faults-gateway", [*head, *_ROWS])
