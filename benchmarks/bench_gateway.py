"""What a call through the gateway costs: `make bench-gateway`.

A scripted engine stands in for a model, so that what is measured is ours: HTTP, the dialect, the key, the way to the
episode's event loop and back, and the record of every token. Clients are a process of their own on the same machine.

    the engine       `engine.generate` with the prompt's tokens
    in the process   `proxy.achat`: chat template, record, tool calls; no HTTP
    the gateway      the same over HTTP, at a rate of 424 calls a second over 64 clients, and as fast as it goes

Conversations have five turns. 424 is the rate that another gateway publishes as its best. Everything is measured three
times, and a figure is the median of its three.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from astune.backbone.engines import load_renderer
from astune.config import AstuneConfig
from astune.config.strict import changed
from astune.engine.base import InferenceEngine
from astune.engine.model_files import resolve_model
from astune.engine.scripted import ScriptedEngine
from astune.gateway.server import gateway
from astune.renderers import Renderer
from astune.schema import Message, SamplingParams
from astune.workflow import AgentModel, EpisodeModel
from astune.workflow.agent_model import Answering
from benchmarks.gateway_clients import QUESTION, TURNS
from benchmarks.report import ROOT, describe, machine, markdown_table, write_results

CLIENTS = 64
RATE = 424
OVERHEAD_BAR_MS = 2.0
EVENTS_BAR = 5000
FIRST_BAR_MS = 2.0
STEP_S = 0.02
"""Seconds of a decoding step, for the time to the first streamed token."""
ANSWER = "Tom has 47 pens and finds 16 more, so he has 47 + 16 = 63 pens now. The answer is 63."
REPEATS = 3
Figures = dict[str, float]


class Bench:
    """One renderer, and episodes of their own for every conversation."""

    def __init__(self, renderer: Renderer, answer_ids: list[int], step_s: float = 0.0) -> None:
        self.renderer = renderer
        self.engine = PacedEngine(lambda *_: answer_ids, step_s)

    def agent(self) -> AgentModel:
        return new_agent(self.engine, self.renderer)

    async def in_process(self, episodes: int) -> tuple[Figures, Figures]:
        """Latencies of the engine alone, and of `achat`."""
        params = SamplingParams(max_tokens=256, stop_token_ids=self.renderer.stop_token_ids, seed=1)
        engine, achat = list[float](), list[float]()
        for _ in range(episodes):
            agent, messages = self.agent(), list[Message]([{"role": "user", "content": QUESTION}])
            for _ in range(TURNS):
                prompt = self.renderer.render(messages, ()).token_ids
                start = time.perf_counter()
                await self.engine.generate(prompt, params, session="bench")
                engine.append(time.perf_counter() - start)
                start = time.perf_counter()
                answer = await agent.achat(messages)
                achat.append(time.perf_counter() - start)
                messages += [answer, {"role": "user", "content": "Are you sure?"}]
        return quantiles(engine), quantiles(achat)

    async def over_http(self, clients: int, calls: int, *, rate: float = 0.0, stream: bool = False) -> dict[str, Any]:
        """What the clients measured."""
        agents = [self.agent() for _ in range(max(1, calls // TURNS // clients) * clients)]
        addresses = [agent.served_at(gateway()) for agent in agents]
        plan = {
            "base_url": gateway().base_url,
            "keys": [address.api_key for address in addresses],
            "clients": clients,
            "rate": rate,
            "stream": stream,
        }
        measured = await run_clients(plan)
        for address in addresses:
            gateway().keys.close(address.api_key)
        return measured


def new_agent(engine: InferenceEngine, renderer: Renderer, *, temperature: float = 1.0) -> AgentModel:
    """An episode's only agent."""
    limits = {"max_model_len": 4096, "max_response_length_in_one_turn": 256, "call_timeout_s": 60}
    config = changed(AstuneConfig(), model={"path": "m"}, rollout=limits)
    model = EpisodeModel(engine, renderer, config, session="bench", seed=1, temperature=temperature)
    return AgentModel(model, agent="a", empty_on_overflow=False, answering=lambda _: Answering("", True))


async def run_clients(plan: dict[str, Any]) -> dict[str, Any]:
    """What clients in a process of their own measured."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.gateway_clients"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    said, _ = await process.communicate(json.dumps(plan).encode())
    return json.loads(said)


class PacedEngine(ScriptedEngine):
    """Takes `step_s` for each token."""

    def __init__(self, replies: Any, step_s: float) -> None:
        super().__init__(replies)
        self._step_s = step_s
        self.first: list[float] = []
        """When each first token was there."""

    async def stream(self, prompt_ids: Any, params: Any, *, session: str, on_token: Any = None) -> Any:
        if not self._step_s or on_token is None:
            extra = {} if on_token is None else {"on_token": on_token}
            return await super().stream(prompt_ids, params, session=session, **extra)
        completion = await super().stream(prompt_ids, params, session=session)
        for position, token in enumerate(completion.token_ids):
            await asyncio.sleep(self._step_s)
            if position == 0:
                self.first.append(time.perf_counter())
            on_token(token)
        return completion


def quantiles(seconds: Sequence[float]) -> Figures:
    """Median and 99th percentile in milliseconds."""
    return {"median_ms": 1000 * statistics.median(seconds), "p99_ms": 1000 * statistics.quantiles(seconds, n=100)[98]}


async def measure(calls: int) -> dict[str, Any]:
    renderer: Any = load_renderer(resolve_model("builtin:smollm2-135m"))
    asked: list[Message] = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    answer_ids = renderer.answer_ids(asked, [])
    bench, paced = Bench(renderer, answer_ids), Bench(renderer, [*answer_ids[:4], answer_ids[-1]], STEP_S)
    await bench.in_process(20)  # warms up
    await bench.over_http(8, 400)
    engine, achat = await bench.in_process(calls // TURNS)
    alone = await bench.over_http(1, calls // 2)
    at_rate = await bench.over_http(CLIENTS, calls * 2, rate=RATE)
    full = await bench.over_http(CLIENTS, calls * 2)
    streams = await bench.over_http(CLIENTS, calls // 2, stream=True)
    first = (await paced.over_http(1, 200, stream=True))["first"]
    after = [came - there for came, there in zip(first, paced.engine.first, strict=True)]
    return {
        "engine": engine,
        "achat": achat,
        "one_client": quantiles(alone["seconds"]),
        "at_rate": quantiles(at_rate["seconds"]) | {"calls_per_s": len(at_rate["seconds"]) / at_rate["wall"]},
        "full": quantiles(full["seconds"]) | {"calls_per_s": len(full["seconds"]) / full["wall"]},
        "streams": {"events_per_s": streams["events"] / streams["wall"]},
        "first_token": quantiles(after),
        "tokens_per_answer": len(answer_ids),
    }


def medians(found: Sequence[Any]) -> Any:
    """Each figure's median over equal structures."""
    if isinstance(found[0], dict):
        return {name: medians([each[name] for each in found]) for name in found[0]}
    return statistics.median(found)


def markdown(facts: dict[str, Any], found: dict[str, Any]) -> str:
    engine = found["engine"]["median_ms"]

    def row(name: str, what: str) -> list[str]:
        figures = found[what]
        rate = f"{figures['calls_per_s']:.0f}" if "calls_per_s" in figures else ""
        over = f"{figures['median_ms'] - engine:.2f}"
        return [name, f"{figures['median_ms']:.2f}", f"{figures['p99_ms']:.2f}", over, rate]

    table = markdown_table(
        ["a call", "median, ms", "99th percentile, ms", "median above the engine's, ms", "calls/s"],
        [
            row("the engine, scripted", "engine"),
            row("in the process (`achat`)", "achat"),
            row("the gateway, one client", "one_client"),
            row(f"the gateway, {CLIENTS} clients at {RATE} calls/s (bar: {OVERHEAD_BAR_MS:g} ms above)", "at_rate"),
            row(f"the gateway, {CLIENTS} clients without pause (bar: {RATE} calls/s)", "full"),
        ],
    )
    return (
        f"# What a call through the gateway costs\n\n{describe(facts)}\n\n"
        f"Conversations of {TURNS} turns, answers of {found['tokens_per_answer']} tokens; clients run beside it. "
        f"Medians of {REPEATS} measurements.\n\n"
        f"{table}\n\n"
        f"Streams: {found['streams']['events_per_s']:.0f} events a second over {CLIENTS} streams (bar: {EVENTS_BAR}). "
        f"The first text arrives {found['first_token']['median_ms']:.2f} ms (99th percentile "
        f"{found['first_token']['p99_ms']:.2f} ms) after the first token (bar: {FIRST_BAR_MS:g} ms).\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--dry-run", action="store_true", help="print the figures, and write no results")
    given = parser.parse_args()
    facts = machine()
    found = medians([asyncio.run(measure(given.calls)) for _ in range(REPEATS)])
    text = markdown(facts, found)
    sys.stdout.write(text)
    if not given.dry_run:
        write_results("gateway", {"machine": facts, "found": found}, text)


if __name__ == "__main__":
    main()
