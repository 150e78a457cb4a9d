"""Processes of an engine hand their episodes to workers that connect to the run's one address.

Two such processes are in this one, each with a gateway of its own; run server, relay and all connections are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import openai
import pytest
from rollout_stage import Script, Stage, build_stage
from rollout_stage import task as task_of
from stepping import ASK, answers_of, stepping
from waiting import eventually

from astune.backbone.cluster.handed_over import handed_over
from astune.backbone.cluster.reports import Reports
from astune.backbone.cluster.run_server import RunServer
from astune.config.schema import ProgramConfig
from astune.context_tracker.replay import faults
from astune.engine.scripted import ScriptedEngine
from astune.gateway.relay import Relay
from astune.renderers import Renderer
from astune.schema import ConfigError, Episode, LeaseLost, Split
from astune.workflow.workers import workers_workflow

TOKEN = "a secret of the whole run"
Claim = dict[str, Any]


class Run:
    """A run with workers: `process` is a process of the engine, `worker` a worker's connection."""

    def __init__(self, relay: Relay, address: str, token: str) -> None:
        self.relay = relay
        self.worker = httpx.AsyncClient(
            base_url=relay.root, headers={"authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=60
        )
        self._address, self._token = address, token

    def process(self, renderer: Renderer, replies: Script | ScriptedEngine, **rollout: Any) -> Stage:
        agent = workers_workflow(ProgramConfig(workers="0.0.0.0:1", fields=["repo"]), connect_here=False)
        workflow = handed_over(agent, Reports(self._address, self._token))
        if isinstance(replies, ScriptedEngine):
            return build_stage(renderer, workflow, engine=replies, **rollout)
        return build_stage(renderer, workflow, replies=replies, **rollout)

    async def claim(self) -> Claim:
        answer = await self.worker.post("/v1/episodes", json={"wait_s": 30})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def report(self, claim: Claim, path: str, **body: Any) -> int:
        answer = await self.worker.post(f"/v1/episodes/{claim['episode_id']}{path}", json=body | _lease(claim))
        return answer.status_code


def _lease(claim: Claim) -> dict[str, str]:
    return {"lease": claim["lease"]}


@asynccontextmanager
async def run_with_workers() -> AsyncIterator[Run]:
    relay = Relay("127.0.0.1", 0, TOKEN)
    async with RunServer(cast(Any, None), relay).listening() as (address, token):
        run = Run(relay, address, token)
        async with run.worker:
            yield run


def said(renderer: Renderer, text: str) -> Script:
    ids = renderer.answer_ids([*ASK, {"role": "assistant", "content": text}], [])
    return lambda *_: ids


async def played(stage: Stage, split: Split = "train") -> list[Episode]:
    """Two episodes with their failed attempts, of which every token is accounted for."""
    tasks, before = [task_of(split, metadata={"answer": "SECRET", "repo": "a/b"})], stage.engine.stats()
    groups = await stage.pool.run_groups(tasks, step=1, split=split, num_repeat=2, temperature=1.0)
    assert stage.pool.balance(groups, stage.engine.stats() - before).difference == 0
    return [episode for group in groups for episode in (*group.episodes, *group.failed_attempts)]


async def asked(claim: Claim) -> str:
    question: Any = [{"role": "user", "content": claim["task"]["main_query"]}]
    async with openai.AsyncOpenAI(base_url=claim["base_url"], api_key=claim["api_key"]) as client:
        answer = await client.chat.completions.create(model=claim["model"], messages=question)
    return answer.choices[0].message.content or ""


async def withdrawn(playing: asyncio.Future[Any]) -> None:
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)


async def test_workers_play_the_episodes_of_all_processes_at_one_address(renderer: Renderer) -> None:
    claims: list[Claim] = []

    async def work(run: Run) -> None:
        while True:
            claim = await run.claim()
            claims.append(claim)
            assert await run.report(claim, "/heartbeat") == 200
            answer = await asked(claim)
            assert await run.report(claim, "/end", final_answer=answer, metrics={"calls": 1}) == 200

    async with run_with_workers() as run:
        working = [asyncio.ensure_future(work(run)) for _ in range(2)]
        first, second = (run.process(renderer, said(renderer, text)) for text in ("Four", "Five"))
        trained, measured = await asyncio.gather(played(first), played(second, "validation"))
        for worker in working:
            worker.cancel()
        closed = await run.worker.get("/v1/models", headers={"authorization": f"Bearer {claims[0]['api_key']}"})
    assert closed.status_code == 401
    assert {claim["base_url"] for claim in claims} == {f"{run.relay.root}/v1"}
    assert {claim["task"]["repo"] for claim in claims} == {"a/b"}
    assert not [claim for claim in claims if "answer" in claim["task"]]
    for episodes, text in ((trained, "Four"), (measured, "Five")):
        assert len(episodes) == 2
        for episode in episodes:
            assert episode.status == "success", episode.error
            assert (answers_of(episode), episode.judge_inputs["final_answer"]) == ([text], text)
            assert episode.metrics["calls"] == 1
            assert not list(faults(episode.forest, renderer))


async def test_both_lanes_are_served_whichever_process_they_come_from(renderer: Renderer) -> None:
    async with run_with_workers() as run:
        first, second = (run.process(renderer, said(renderer, "Four")) for _ in range(2))
        playing = [asyncio.ensure_future(played(first))]
        one = await run.claim()
        playing.append(asyncio.ensure_future(played(second, "validation")))
        board = run.relay.board
        await asyncio.to_thread(eventually, lambda: board.lanes()["validation"]["waiting"] == 2, "both are offered")
        other = await run.claim()
        lanes = (await run.worker.get("/healthz")).json()["lanes"]
        assert (lanes["train"]["running"], lanes["validation"]["running"]) == (1, 1)
        assert [one["episode_id"].partition("-")[0], other["episode_id"].partition("-")[0]] == ["train", "validation"]
        for each in playing:
            each.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


async def test_the_episode_of_a_lost_worker_runs_again_and_its_late_answer_is_refused(renderer: Renderer) -> None:
    async with run_with_workers() as run:
        process = run.process(renderer, said(renderer, "Four"))
        playing = asyncio.ensure_future(played(process))
        lost, kept = await run.claim(), await run.claim()
        assert await asked(lost) == "Four"
        assert await run.report(lost, "/abort", error="its worker ended", given_back=True) == 200
        again = await run.claim()
        assert await run.report(lost | {"lease": "guessed"}, "/end", final_answer="late") == 409
        for claim in (kept, again):
            assert await run.report(claim, "/end", final_answer=await asked(claim)) == 200
        episodes = await playing
    finished = [episode for episode in episodes if episode.status == "success"]
    [failed] = [episode for episode in episodes if episode.status == "error"]
    assert sorted(episode.attempt for episode in finished) == [1, 2]
    assert (failed.error or "").startswith(LeaseLost.__name__)
    assert answers_of(failed) == ["Four"]


async def test_a_worker_that_is_not_heard_of_loses_its_lease(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astune.gateway.lease_board.LEASE_S", 0.05)
    async with run_with_workers() as run:
        playing = asyncio.ensure_future(played(run.process(renderer, said(renderer, "Four"))))
        silent = await run.claim()
        again = await run.claim()
        while again["episode_id"].removesuffix("-2") != silent["episode_id"].removesuffix("-1"):
            again = await run.claim()
        assert await run.report(silent, "/end", final_answer="late") == 409
        await withdrawn(playing)


async def test_an_episode_whose_process_dies_is_taken_from_its_worker(renderer: Renderer) -> None:
    async with run_with_workers() as run:
        playing = asyncio.ensure_future(played(run.process(renderer, said(renderer, "Four"))))
        claim = await run.claim()
        await withdrawn(playing)
        while await run.report(claim, "/heartbeat") == 200:
            pass
        assert await run.report(claim, "/end", final_answer="late") == 409


async def test_a_token_is_sent_to_a_worker_before_the_next_is_sampled(renderer: Renderer) -> None:
    text = "Four of them are there, and none is here."
    engine = stepping(renderer, text)
    engine.allow(1)
    pieces: list[str] = []
    async with run_with_workers() as run:
        playing = asyncio.ensure_future(played(run.process(renderer, engine, call_timeout_s=60)))
        claim, other = await run.claim(), await run.claim()
        async with openai.AsyncOpenAI(base_url=claim["base_url"], api_key=claim["api_key"]) as client:
            async for chunk in await client.chat.completions.create(model="m", messages=ASK, stream=True):
                if chunk.choices[0].delta.content:
                    pieces.append(chunk.choices[0].delta.content)
                    engine.allow(1)  # the next token is sampled because this one came
        for each in (claim, other):
            assert await run.report(each, "/end", final_answer="done") == 200
        episodes = await playing
    assert len(pieces) > 8
    assert "".join(pieces) == text
    assert sorted(map(answers_of, episodes)) == [[], [text]]


async def test_a_worker_that_hangs_up_ends_the_sampling_in_the_other_process(renderer: Renderer) -> None:
    engine = stepping(renderer)
    engine.allow(3)
    async with run_with_workers() as run:
        playing = asyncio.ensure_future(played(run.process(renderer, engine, call_timeout_s=60)))
        claim = await run.claim()
        key = {"authorization": f"Bearer {claim['api_key']}"}
        body = {"model": "m", "messages": ASK, "stream": True}
        async with run.worker.stream("POST", "/v1/chat/completions", json=body, headers=key) as answer:
            async for _ in answer.aiter_lines():
                break
        await asyncio.wait_for(engine.cancelled.wait(), 20)
        await withdrawn(playing)


async def test_refusals_pass_through_in_their_dialect_and_a_dead_gateway_is_named(renderer: Renderer) -> None:
    async with run_with_workers() as run:
        playing = asyncio.ensure_future(played(run.process(renderer, said(renderer, "Four"))))
        claim = await run.claim()
        key = {"authorization": f"Bearer {claim['api_key']}"}
        body: dict[str, Any] = {"model": "m", "messages": ASK, "temperature": 0.1}
        called = await run.worker.post("/v1/chat/completions", json=body, headers=key)
        assert called.headers["x-astune-overridden"] == "temperature"
        assert (await run.worker.post("/v1/chat/completions", json={}, headers=key)).status_code == 400
        assert (await run.worker.post("/v1/chat/completions", json=body)).status_code == 401  # with the worker's token
        nobody = await run.worker.post("/v1/messages", json={}, headers={"x-api-key": "guessed"})
        assert (nobody.status_code, nobody.json()["type"]) == (401, "error")
        for digest in run.relay._gateways:
            run.relay._gateways[digest] = "http://127.0.0.1:1"
        gone = await run.worker.post("/v1/chat/completions", json=body, headers=key)
        assert (gone.status_code, gone.headers["x-should-retry"]) == (503, "false")
        assert "does not answer" in gone.json()["error"]["message"]
        await withdrawn(playing)


async def test_a_result_with_an_integer_of_any_size_reaches_the_judge(renderer: Renderer) -> None:
    large = 10**4000
    async with run_with_workers() as run:
        playing = asyncio.ensure_future(played(run.process(renderer, said(renderer, "Four"))))
        for claim in (await run.claim(), await run.claim()):
            await asked(claim)
            assert await run.report(claim, "/end", final_answer={"sum": [large]}) == 200
        assert [episode.judge_inputs["final_answer"] for episode in await playing] == [{"sum": [large]}] * 2


async def test_headers_that_are_not_ascii_pass_through(renderer: Renderer) -> None:
    async with run_with_workers() as run:
        playing = asyncio.ensure_future(played(run.process(renderer, said(renderer, "Four"))))
        claim = await run.claim()
        key = {"authorization": f"Bearer {claim['api_key']}", "x-user-id": "J\xf6rg".encode("latin-1")}
        called = await run.worker.post("/v1/chat/completions", json={"model": "m", "messages": ASK}, headers=key)
        assert called.status_code == 200, called.text
        await withdrawn(playing)


async def test_the_address_is_free_again_after_the_run(renderer: Renderer) -> None:
    async with run_with_workers() as run:
        port = int(run.relay.root.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"port {port} is not free"):
            Relay("127.0.0.1", port, TOKEN)
        playing = asyncio.ensure_future(played(run.process(renderer, said(renderer, "Four"))))
        held = await run.claim()
        await run.claim()
        waiting = asyncio.ensure_future(run.worker.post("/v1/episodes", json={"wait_s": 30}))
        await asyncio.to_thread(eventually, lambda: run.relay.board._changed, "a worker waits for an episode")
        await asyncio.to_thread(run.relay.close)
        assert (await waiting).status_code == 204
        episodes = await playing
    assert held["episode_id"] in {episode.episode_id for episode in episodes}
    assert all("the run ended before the episode" in (episode.error or "") for episode in episodes)
    Relay("127.0.0.1", port, TOKEN).close()
