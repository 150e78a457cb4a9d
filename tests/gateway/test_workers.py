"""Workers in processes of their own play the episodes of a run in this one; some are killed."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from rollout_stage import build_stage
from rollout_stage import task as task_of
from waiting import eventually

from astune.backbone.parts import load_parts
from astune.config import load_config
from astune.config.schema import ProgramConfig
from astune.gateway.lease_board import LeaseBoard, Offer, StaleLeaseError
from astune.gateway.server import GatewayServer, WorkerGateway, worker_gateway
from astune.renderers import Renderer
from astune.schema import ConfigError, Episode, LeaseLost, Split, WorkflowError
from astune.workflow.agent_result import given_task
from astune.workflow.workers import WorkersWorkflow, workers_workflow

TOKEN = "a secret of the whole run"
ROOT = Path(__file__).parents[2]
AGENT = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
def ask():
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": task["main_query"]}]}).encode()
    head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, head)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
said = ask()
seen = {name: value for name, value in os.environ.items() if "secret of the whole run" in value}
print(json.dumps({"final_answer": said, "metrics": {"leaked": len(seen)}}))
"""
HANGS_ONCE = """
import os, sys, time
try:
    os.open(sys.argv[1], os.O_CREAT | os.O_EXCL)
except FileExistsError:
    pass
else:
    exec(compile(open(sys.argv[2]).read().replace("said = ask()", "said = ask(); time.sleep(600)"), "agent", "exec"),
         {"time": time})
exec(open(sys.argv[2]).read())
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def board(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayServer]:
    """Where workers come to; the seconds of a lease may be given."""
    monkeypatch.setenv("ASTUNE_WORKER_TOKEN", TOKEN)
    if lease_s := getattr(request, "param", None):
        monkeypatch.setattr("astune.gateway.lease_board.LEASE_S", lease_s)
    worker_gateway.cache_clear()
    yield workers_workflow(ProgramConfig(workers="127.0.0.1:0")).server()
    worker_gateway.cache_clear()


@pytest.fixture
def start(board: GatewayServer, tmp_path: Path) -> Iterator[Start]:
    """Starts a worker with an agent's code."""
    started: list[subprocess.Popen[str]] = []

    def worker(*command: str, token: str = TOKEN, parallel: int = 2) -> subprocess.Popen[str]:
        line = ["-m", "astune", "worker", "--connect", board.root, "--parallel", str(parallel), "--", *command]
        started.append(
            subprocess.Popen(
                [sys.executable, *line],
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": str(ROOT), "ASTUNE_WORKER_TOKEN": token},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return started[-1]

    yield worker
    for process in started:
        process.kill()
        process.wait()


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


async def played(renderer: Any, n: int = 1, split: Split = "train", **rollout: Any) -> list[Episode]:
    """Episodes with their failed attempts."""
    ids = renderer.answer_ids([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Four"}], [])
    workflow: type[WorkersWorkflow] = workers_workflow(ProgramConfig(workers="127.0.0.1:0", fields=["repo"]))
    stage = build_stage(renderer, workflow, replies=lambda *_: ids, **rollout)
    tasks = [task_of(f"t/{number}", metadata={"answer": "SECRET", "repo": "a/b"}) for number in range(n)]
    groups = await stage.pool.run_groups(tasks, step=1, split=split, num_repeat=1, temperature=1.0)
    return [episode for group in groups for episode in (*group.episodes, *group.failed_attempts)]


@pytest.mark.slow
def test_workers_play_episodes_of_both_lanes_and_the_token_reaches_no_program(
    renderer: Renderer, start: Start, tmp_path: Path
) -> None:
    agent = written(tmp_path / "agent.py", AGENT)
    for _ in range(2):
        start(sys.executable, agent, "{repo}")

    async def both() -> list[list[Episode]]:
        return await asyncio.gather(played(renderer, 4), played(renderer, 2, "validation"))

    for episode in (episode for episodes in asyncio.run(both()) for episode in episodes):
        assert episode.status == "success", episode.error
        assert episode.judge_inputs["final_answer"] == "Four"
        assert episode.judge_inputs["exit_status"] == 0
        assert episode.metrics["leaked"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "board"), [(signal.SIGKILL, 5.0), (signal.SIGTERM, None)], indirect=["board"])
def test_the_episode_of_a_lost_worker_runs_again_elsewhere(
    renderer: Renderer, start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    agent, mark = written(tmp_path / "agent.py", AGENT), tmp_path / "began"
    command = (sys.executable, "-c", HANGS_ONCE, str(mark), agent)
    first = start(*command, parallel=1)

    async def with_a_loss() -> list[Episode]:
        playing = asyncio.ensure_future(played(renderer))
        await asyncio.to_thread(eventually, mark.exists, "the first worker plays")
        first.send_signal(number)
        start(*command, parallel=1)
        return await playing

    episodes = asyncio.run(with_a_loss())  # with max_attempts 1: a lost lease is no attempt
    finished, lost = episodes
    assert finished.status == "success", finished.error
    assert finished.attempt == 2
    assert (lost.error or "").startswith(LeaseLost.__name__)
    if number == signal.SIGTERM:
        assert first.wait(20) == 0
        assert "its worker ended" in (lost.error or "")


@pytest.mark.slow
def test_a_program_that_fails_is_named_and_a_wrong_token_ends_the_worker(
    renderer: Renderer, start: Start, tmp_path: Path
) -> None:
    wrong = start("true", token="a guess of sufficient length")
    assert wrong.wait(60) == 2
    start("sh", "-c", "echo it broke >&2; exit 3")
    (episode,) = asyncio.run(played(renderer))
    assert "exit status 3" in (episode.error or "")
    assert "it broke" in (episode.error or "")


@pytest.mark.slow
def test_a_program_that_fails_after_it_asked_the_model_is_judged(
    renderer: Renderer, start: Start, tmp_path: Path
) -> None:
    start(sys.executable, written(tmp_path / "agent.py", AGENT + "\nsys.exit(3)"))
    (episode,) = asyncio.run(played(renderer))
    assert episode.error is None
    assert (episode.judge_inputs["exit_status"], episode.metrics["agent_failed"]) == (3, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("result", ['{"reward": NaN}', '{"metrics": {"a": "b"}}', '{"reward": "1"}'])
def test_a_result_that_is_none_fails_the_episode_and_the_worker_goes_on(
    renderer: Renderer, start: Start, tmp_path: Path, result: str
) -> None:
    agent = written(tmp_path / "agent.py", AGENT + f"\nprint({result!r})")
    worker = start(sys.executable, agent, parallel=1)
    for _ in range(2):
        (episode,) = asyncio.run(played(renderer))
        assert "result is refused" in (episode.error or "")
    assert worker.poll() is None


def offer(name: str, lane: Split = "train") -> Offer:
    return Offer(name, {"task_id": name}, "key", "model", lane)


async def test_a_late_answer_of_a_lost_lease_is_refused() -> None:
    board = LeaseBoard(lease_s=0.05)
    playing = asyncio.ensure_future(board.play(offer("e"), "here"))
    claimed = await board.claim(5)
    assert claimed is not None
    with pytest.raises(LeaseLost):
        await playing
    for late in (
        lambda: board.end("e", claimed.lease, {}),
        lambda: board.heartbeat("e", claimed.lease),
        lambda: board.abort("e", claimed.lease, WorkflowError("no")),
    ):
        with pytest.raises(StaleLeaseError):
            late()


async def test_a_result_that_is_said_twice_counts_once_and_another_lease_is_refused() -> None:
    board = LeaseBoard()
    playing = asyncio.ensure_future(board.play(offer("e"), "here"))
    claimed = await board.claim(5)
    assert claimed is not None
    with pytest.raises(StaleLeaseError):
        board.end("e", "guessed", {"final_answer": "x"})
    board.end("e", claimed.lease, {"final_answer": 1})
    board.end("e", claimed.lease, {"final_answer": 2})
    assert await playing == {"final_answer": 1}


async def test_neither_lane_waits_for_the_end_of_the_other() -> None:
    board = LeaseBoard()
    names = [("t0", "train"), ("t1", "train"), ("t2", "train"), ("v0", "validation"), ("v1", "validation")]
    playing = [asyncio.ensure_future(board.play(offer(name, lane), "here")) for name, lane in names]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    claimed = [await board.claim(5) for _ in names]
    assert [each.episode_id for each in claimed if each] == ["t0", "v0", "t1", "v1", "t2"]
    assert board.lanes()["train"] == {"waiting": 0, "running": 3}
    for each in playing:
        each.cancel()
    await asyncio.gather(*playing, return_exceptions=True)
    assert board.lanes()["train"] == {"waiting": 0, "running": 0}
    assert await board.claim(0) is None


def test_what_is_no_workers_request_is_refused_in_words(board: GatewayServer) -> None:
    bearer = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=board.root, headers=bearer, timeout=60) as client:
        assert client.post("/v1/episodes", json={}).status_code == 204
        assert client.post("/v1/episodes", json={}, headers={"authorization": "Bearer x"}).status_code == 401
        assert client.post("/v1/episodes", content=b"[" * 1000).status_code == 400
        assert client.post("/v1/episodes", json={"wait_s": 1e9}).status_code == 400
        assert client.post("/v1/episodes/no%2Fsuch/heartbeat", json={"lease": ""}).status_code == 409
        for path, body in (("heartbeat", {}), ("end", {}), ("abort", {"error": "no"})):
            assert client.post(f"/v1/episodes/e/{path}", json={"lease": "é", **body}).status_code == 409
        assert client.post("/v1/episodes/e/end", json={"lease": "x", "reward": "1"}).status_code == 400
        assert client.post("/v1/chat/completions", json={}).status_code == 401  # the token opens no model
        assert client.get("/healthz").json()["lanes"]["train"] == {"waiting": 0, "running": 0}


def test_an_agent_is_given_its_task_as_plain_json() -> None:
    proxy: Any = SimpleNamespace(init_messages=[])
    task = task_of("train", metadata={"day": date(2026, 1, 2), "size": np.float32(2), "rate": math.nan})
    given = given_task(task, proxy, ["day", "size"])
    assert (given["day"], given["size"]) == ("2026-01-02", 2.0)
    assert json.loads(json.dumps(given)) == given
    with pytest.raises(WorkflowError, match="task train cannot be given to its agent: Out of range"):
        given_task(task, proxy, ["rate"])


async def test_a_worker_that_leaves_while_it_waits_is_given_no_episode(board: GatewayServer) -> None:
    assert isinstance(board, WorkerGateway)
    waiting = board.board._changed
    async with httpx.AsyncClient(
        base_url=board.root, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60
    ) as client:
        claiming = asyncio.ensure_future(client.post("/v1/episodes", json={"wait_s": 30}, timeout=60))
        await asyncio.to_thread(eventually, lambda: waiting, "the worker waits")
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        await asyncio.to_thread(eventually, lambda: not waiting, "it is waited for no more")


@pytest.mark.parametrize(
    ("workers", "token", "named"),
    [("0.0.0.0:8183", "short", "ASTUNE_WORKER_TOKEN"), ("8183", TOKEN, "HOST:PORT"), ("h:99999", TOKEN, "HOST:PORT")],
)
def test_workers_need_an_address_and_a_secret(
    workers: str, token: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTUNE_WORKER_TOKEN", token)
    tasks = written(tmp_path / "tasks.jsonl", json.dumps({"main_query": "Hi"}))
    config = load_config(
        None,
        [f"rollout.workflow={{workers: '{workers}'}}", f"task_reader.jsonl.training.file_path={tasks}"],
    )
    with pytest.raises(ConfigError, match=named):
        load_parts(config, tmp_path)
