"""The agent and the judge of a run under faults: what `plan.json` says goes wrong, does so in some of its episodes.

A copy lies in each run's folder. Rewards are by chance: the tiny model learns nothing, and every group has to differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from astune import AstuneProxy, Task, Workflow
from astune.task_judge import EnvServiceJudge

PLAN: dict[str, Any] = json.loads(Path("plan.json").read_text())
HERE = Path.cwd()
_N_PLAYED = 0
_LEAKED: list[Any] = []

if PLAN.get("clock"):
    _really = time.time
    _began = _really()
    time.time = lambda: _really() + (PLAN["clock"] if _really() > _began + PLAN["after_s"] else 0)


class Unheard(BaseException):
    """What nobody expects to be raised."""


def trouble(where: str, task: Task) -> str:
    """What goes wrong this time; empty for nothing. Each attempt draws anew, and first comes what was ordered."""
    global _N_PLAYED
    _N_PLAYED += 1
    with contextlib.suppress(OSError):
        (HERE / f"order-{where}").rename(HERE / f"met-{where}")
        return (HERE / f"met-{where}").read_text()
    start = int(os.environ["CHAOS_START"])
    kinds = PLAN[where] if start <= 2 else ()
    rng = random.Random(f"{PLAN['seed']} {start} {where} {task.task_id} {_N_PLAYED}")
    return rng.choice(kinds) if kinds and rng.random() < PLAN["share"] else ""


def _block() -> None:
    time.sleep(0.7)


async def misbehave(kind: str) -> None:
    match kind:
        case "raises":
            raise ValueError("planned")
        case "raises what nobody expects":
            raise Unheard
        case "hangs":
            await asyncio.Event().wait()
        case "blocks":
            _block()
        case "exits":
            sys.exit(3)
        case "exits at once":
            os._exit(0)
        case "goes elsewhere":
            os.chdir("/")
        case "closes its streams":
            sys.stdout.close()
        case "leaks":
            threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
            _LEAKED.append(os.open(os.devnull, os.O_RDONLY))
            _LEAKED.append(asyncio.ensure_future(asyncio.sleep(3600)))


class Solver(Workflow):
    async def execute(self, task: Task, proxy: AstuneProxy) -> None:
        await misbehave(trouble("agent", task))
        messages: list[Any] = list(proxy.init_messages)
        said = ""
        for turn in range(2):
            said = await self._ask(task, proxy, messages)
            await asyncio.sleep(PLAN["waits_s"] * random.uniform(0.5, 1))
            action = "<calc>1+1</calc>" if turn == 0 else r"\boxed{2}"
            observation, _, terminate, _ = await proxy.agym_step({"role": "assistant", "content": action})
            if terminate:
                break
            messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": observation}]
        proxy.update_judge_input_dictionary(said=said)

    async def _ask(self, task: Task, proxy: AstuneProxy, messages: list[Any]) -> str:
        if not PLAN["gateway"]:
            return (await proxy.achat(messages))["content"]
        base_url, key = proxy.as_oai_baseurl_apikey()
        body = {"model": "any", "messages": messages}
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=20, verify=False) as client:
            await _provoke(client, trouble("gateway calls", task), body)
            answer = await client.post("/chat/completions", json=body)
            return answer.raise_for_status().json()["choices"][0]["message"]["content"]


async def _provoke(client: httpx.AsyncClient, kind: str, body: dict[str, Any]) -> None:
    with contextlib.suppress(httpx.HTTPError):
        match kind:
            case "junk":
                await client.post("/chat/completions", content=b'{"messages": [[[' * 50)
            case "hangs up":
                await client.post("/chat/completions", json=body, timeout=0.001)
            case "half a request":
                _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99\r\n\r\n{")
                await writer.drain()
                writer.close()


class Judge(EnvServiceJudge):
    async def compute_reward(self, judge_input_dictionary: dict[str, Any]) -> Any:
        task = judge_input_dictionary["task_core_arg"].task
        await super().compute_reward(judge_input_dictionary)
        kind = trouble("judge", task)
        await misbehave(kind)
        if kind == "lies":
            return random.Random(_N_PLAYED).choice((float("nan"), float("inf"), 1e308, "yes", None, (1,)))
        lucky = random.Random(f"{judge_input_dictionary['said']} {_N_PLAYED}").random() < 0.5
        return float(lucky), lucky
