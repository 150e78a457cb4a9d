"""The clients of `bench_gateway`, in a process of their own, which reads a plan from standard input.

HTTP is written by hand over one kept connection a client, since an SDK would cost more than what is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

TURNS = 5
QUESTION = (
    "Tom has 47 pens and finds 16 more on his way to school. How many pens has Tom now? Show how you calculate it."
)


@dataclass
class Measured:
    """Seconds of each call; of a stream, when its first text came (by the machine's clock), how many seconds after the
    request, and how many events."""

    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    first_after: list[float] = field(default_factory=list)
    events: int = 0


async def client(plan: dict[str, Any], keys: list[str], number: int, measured: Measured, start: float) -> None:
    """Play one episode after another, of `TURNS` calls each; paced where the plan has a rate."""
    address = urlsplit(plan["base_url"])
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    every_s = plan["clients"] / plan["rate"] if plan["rate"] else 0.0
    due = start + every_s * number / plan["clients"]
    for key in keys:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        for _ in range(TURNS):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += every_s
            body = {"model": "policy", "messages": messages, "stream": plan["stream"], **plan.get("body", {})}
            answer = await _call(reader, writer, key, body, measured)
            messages += [answer, {"role": "user", "content": "Are you sure?"}]
    writer.close()


async def _call(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    key: str,
    asked: dict[str, Any],
    measured: Measured,
) -> dict[str, Any]:
    body = json.dumps(asked).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    began = time.perf_counter()
    writer.write(head.encode() + body)
    said = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not said.startswith(b"http/1.1 200"):
        raise RuntimeError(said.decode())
    if not asked["stream"]:
        length = int(said.partition(b"content-length:")[2].split(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))["choices"][0]["message"]
    else:
        answer = {"role": "assistant", "content": ""}
        while size := int(await reader.readline(), 16):
            piece = await reader.readexactly(size + 2)
            for line in piece.split(b"\n"):
                if line.startswith(b"data: {"):
                    measured.events += 1
                    delta = json.loads(line[6:])["choices"][0]["delta"].get("content")
                    if delta and not answer["content"]:
                        measured.first.append(time.perf_counter())
                        measured.first_after.append(measured.first[-1] - began)
                    answer["content"] += delta or ""
        await reader.readline()
    measured.seconds.append(time.perf_counter() - began)
    return {"role": "assistant", "content": answer["content"]}


async def main() -> None:
    plan = json.load(sys.stdin)
    keys, measured = plan["keys"], Measured()
    share = len(keys) // plan["clients"]
    start = time.perf_counter() + 0.2
    await asyncio.sleep(0.2)
    clients = [client(plan, keys[n * share : (n + 1) * share], n, measured, start) for n in range(plan["clients"])]
    await asyncio.gather(*clients)
    wall = time.perf_counter() - start
    json.dump({"wall": wall, **vars(measured)}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
