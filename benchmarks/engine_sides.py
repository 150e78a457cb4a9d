"""The engines that `make bench-engine` plays against each other: ours in this process, each peer in its own.

A peer lives in an environment that scripts/make_peer_env.sh makes; one that is not there has no sides.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.gguf_file import gguf_file
from benchmarks.peer_process import Drawn, PeerProcess
from benchmarks.report import ROOT
from benchmarks.vllm_server import VllmServer

MAX_MODEL_LEN = 2048
LIBLLAMA = "node/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"

OURS = {"ours": "none", "ours int8": "int8"}
"""Our sides, and their `engine.quantization`."""
Weights = Literal["bf16", "int8"]
Generate = Callable[[list[int], int, str], Awaitable[Drawn]]


@dataclass(frozen=True)
class Side:
    name: str
    generate: Generate
    """The prompt, how many tokens to draw after it, and the session that both belong to."""
    weights: Weights = "bf16"
    stopped: Callable[[], AbstractContextManager[None]] = nullcontext
    """Keeps it quiet while another is measured."""
    end: Callable[[str], None] = lambda session: None
    """The session has no more turns."""


@asynccontextmanager
async def ours(folder: Path, **settings: Any) -> AsyncIterator[list[Side]]:
    """Both of ours; one alone on a GPU, and where this CPU has no products in 8 bits. `settings` are the engine's."""
    from astune.engine.local.device import pick_device, pick_dtype, takes_int8

    device = pick_device("auto")
    async with AsyncExitStack() as stack:
        in_int8 = device.type == "cpu" and takes_int8(pick_dtype("auto", device))
        names = [name for name in OURS if OURS[name] == "none" or in_int8]
        yield [await stack.enter_async_context(_ours(folder, name, settings)) for name in names]


@asynccontextmanager
async def _ours(folder: Path, name: str, settings: dict[str, Any]) -> AsyncIterator[Side]:
    from astune.config.schema import EngineConfig, ModelConfig
    from astune.engine.local.in_process import InProcessEngine
    from astune.schema import SamplingParams

    own = EngineConfig.model_validate({**settings, "quantization": OURS[name]})
    engine = InProcessEngine.load(folder, model=ModelConfig(), engine=own, max_model_len=MAX_MODEL_LEN)
    engine.open_session("whole benchmark")  # the last session's end empties the cache, and peers keep theirs

    async def generate(prompt: list[int], max_tokens: int, session: str) -> Drawn:
        engine.open_session(session)
        completion = await engine.generate(prompt, SamplingParams(max_tokens=max_tokens), session=session)
        return Drawn(completion.token_ids, completion.logprobs)

    try:
        yield Side(name, generate, "bf16" if OURS[name] == "none" else "int8", end=engine.close_session)
    finally:
        await engine.aclose()


@asynccontextmanager
async def peers(folder: Path) -> AsyncIterator[dict[str, list[Side]]]:
    """Every peer's sides by its recipe's name; none for one whose environment is not there."""
    async with AsyncExitStack() as stack:
        sides: dict[str, list[Side]] = {}
        for peer, start in (("vllm", _vllm), ("llama-cpp", _llama_cpp), ("openvino", _openvino)):
            recipe = environment(peer) / ".recipe"
            sides[peer] = await start(folder, stack) if recipe.exists() else []
        yield sides


def environment(peer: str) -> Path:
    return ROOT / f".venv-{peer}"


async def _vllm(folder: Path, stack: AsyncExitStack) -> list[Side]:
    server = stack.enter_context(VllmServer(folder, max_model_len=MAX_MODEL_LEN))
    client = await stack.enter_async_context(server.client())

    async def generate(prompt: list[int], max_tokens: int, session: str) -> Drawn:
        completion = await server.generate(client, prompt, max_tokens=max_tokens)
        return Drawn(completion.token_ids, completion.logprobs)

    return [Side("vLLM", generate, stopped=server.stopped)]


async def _llama_cpp(folder: Path, stack: AsyncExitStack) -> list[Side]:
    program = (sys.executable, "-m", "benchmarks.llama_cpp_peer", environment("llama-cpp") / LIBLLAMA)
    return [
        await _process("llama.cpp bf16", "bf16", stack, *program, gguf_file(folder, "BF16")),
        await _process("llama.cpp Q8_0", "int8", stack, *program, gguf_file(folder, "Q8_0")),
    ]


async def _openvino(folder: Path, stack: AsyncExitStack) -> list[Side]:
    program = (environment("openvino") / "bin" / "python", "-m", "benchmarks.openvino_peer")
    return [await _process("OpenVINO", "bf16", stack, *program, gguf_file(folder, "F16"))]


async def _process(name: str, weights: Weights, stack: AsyncExitStack, *command: str | Path) -> Side:
    process = await stack.enter_async_context(PeerProcess(*command))

    async def generate(prompt: list[int], max_tokens: int, session: str) -> Drawn:
        return await process.generate(prompt, max_tokens)

    return Side(name, generate, weights, stopped=process.stopped)
