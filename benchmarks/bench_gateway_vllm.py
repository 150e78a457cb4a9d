"""The gateway beside vLLM's own server, with one model and the same clients: part of `make bench-gateway`.

    vLLM's server    its own `/v1/chat/completions`
    the gateway      ours in front of that server, which it asks for token ids and log-probabilities

Conversations of five turns at temperature 0, so that both write the same answers. Clients are a process of their own,
and everything runs on one machine. The two are measured in turns; a figure is the median of three.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from astune.backbone.engines import load_renderer
from astune.engine.model_files import resolve_model
from astune.engine.remote.endpoint import Endpoint
from astune.engine.remote.replicas import Replicas
from astune.engine.remote.served import ServedEngine
from astune.gateway.server import gateway
from astune.renderers import Renderer
from benchmarks.bench_gateway import REPEATS, Figures, medians, new_agent, run_clients
from benchmarks.gateway_clients import TURNS
from benchmarks.report import describe, machine, markdown_table, write_results
from benchmarks.vllm_server import MODEL_NAME, VllmServer

CLIENTS = (1, 8)
BODY = {"model": MODEL_NAME, "max_tokens": 32, "temperature": 0.0}
NAMES = {"vllm": "vLLM's server", "gateway": "the gateway in front of it"}
MAX_MODEL_LEN = 4096


class Sides:
    """Both servers, asked by the same clients."""

    def __init__(self, server: VllmServer, renderer: Renderer) -> None:
        self._server = server
        self._renderer = renderer
        self._engine = Replicas([ServedEngine(Endpoint(server.url, model=MODEL_NAME), max_model_len=MAX_MODEL_LEN)])

    async def measure(self, side: str, clients: int, episodes: int) -> Figures:
        """Latencies of plain calls, and of the first text of streams."""
        plain = await self._ask(side, clients, episodes, stream=False)
        streams = await self._ask(side, clients, episodes, stream=True)
        return {
            "median_ms": 1000 * statistics.median(plain["seconds"]),
            "slowest_ms": 1000 * max(plain["seconds"]),
            "calls_per_s": len(plain["seconds"]) / plain["wall"],
            "first_ms": 1000 * statistics.median(streams["first_after"]),
            "events_per_s": streams["events"] / streams["wall"],
        }

    async def _ask(self, side: str, clients: int, episodes: int, *, stream: bool) -> dict[str, Any]:
        plan = {"clients": clients, "rate": 0.0, "stream": stream, "body": BODY}
        if side == "vllm":
            return await run_clients(plan | {"base_url": f"{self._server.url}/v1", "keys": ["none"] * episodes})
        agents = [new_agent(self._engine, self._renderer, temperature=0.0) for _ in range(episodes)]
        keys = [agent.served_at(gateway()).api_key for agent in agents]
        try:
            return await run_clients(plan | {"base_url": gateway().base_url, "keys": keys})
        finally:
            for key in keys:
                gateway().keys.close(key)

    async def aclose(self) -> None:
        await self._engine.aclose()


async def measure(server: VllmServer, renderer: Renderer, episodes: int) -> dict[str, Any]:
    """Figures by side and number of clients."""
    sides = Sides(server, renderer)
    found: dict[str, dict[str, list[Figures]]] = {side: {str(n): [] for n in CLIENTS} for side in NAMES}
    for side in NAMES:
        await sides.measure(side, 1, 1)  # warms up
    for _ in range(REPEATS):
        for clients in CLIENTS:
            for side in NAMES:
                found[side][str(clients)].append(await sides.measure(side, clients, clients * episodes))
    await sides.aclose()
    return {side: {n: medians(each) for n, each in by_clients.items()} for side, by_clients in found.items()}


def markdown(facts: dict[str, Any], found: dict[str, Any], load_at_the_end: float) -> str:
    rows: list[Sequence[object]] = [
        [
            NAMES[side],
            clients,
            f"{figures['median_ms']:.0f}",
            f"{figures['slowest_ms']:.0f}",
            f"{figures['first_ms']:.1f}",
            f"{figures['calls_per_s']:.2f}",
            f"{figures['events_per_s']:.0f}",
        ]
        for clients in map(str, CLIENTS)
        for side in NAMES
        for figures in [found[side][clients]]
    ]
    head = ["", "clients", "a call, median, ms", "slowest, ms", "first text, median, ms", "calls/s", "events/s"]
    return (
        f"# The gateway beside vLLM's own server\n\n{describe(facts)}, load_average_at_the_end {load_at_the_end}\n\n"
        f"SmolLM2 of 135M parameters in vLLM {found['version']} on this CPU; conversations of {TURNS} turns, answers "
        f"of at most {BODY['max_tokens']} tokens at temperature 0. The gateway asks the same server for token ids and "
        f"log-probabilities, and records them. Clients run beside both. Medians of {REPEATS} measurements.\n\n"
        f"{markdown_table(head, rows)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=4, help="of each client (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="print the figures, and write no results")
    given = parser.parse_args()
    facts = machine()
    folder = resolve_model("builtin:smollm2-135m")
    renderer = load_renderer(folder)
    # vLLM 0.32 ends on a CPU when it reads the prompt of a request that has a seed in pieces
    arguments = ("--no-enable-chunked-prefill",)
    with VllmServer(folder, max_model_len=MAX_MODEL_LEN, arguments=arguments) as server:
        found = asyncio.run(measure(server, renderer, given.episodes)) | {"version": server.version()}
    text = markdown(facts, found, machine()["load_average"])
    sys.stdout.write(text)
    if not given.dry_run:
        write_results("gateway_vllm", {"machine": facts, "found": found}, text)


if __name__ == "__main__":
    main()
