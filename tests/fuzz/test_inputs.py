"""Whatever arrives is answered, refused with its cause, or read in part: no traceback, no status of 500, no hang.

Requests of both kinds of servers, configurations, task files and stored runs, drawn by hypothesis. `make fuzz N=1000
SEED=7` draws more of each; a failure shows the smallest input that brings it about.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from drawn import ANSWERS_WITHIN_S, SEED, N, fuzzed
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from service_stage import Service, running
from viewer_stage import make_episode, serving, write_run

from astune.config import load_config
from astune.config.schema import TaskReaderConfig
from astune.gateway.server import GatewayServer
from astune.schema import AstuneError
from astune.task_reader.task_reader_base import open_task_reader

pytestmark = pytest.mark.slow

TEXTS = st.text(max_size=40) | st.sampled_from(
    ["", "\0", "../..", "calculator", "11 + 12", "NaN", "1e999", "<script>", "__class__", "%s", "\ud800", "x" * 5000]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(2**63), 2**63])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def _json(value: Any) -> bytes:
    """Also what no JSON holds, as Python writes it."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


ENDPOINTS = ("create", "step", "evaluate", "get_info", "release", "get_env_profile")
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "env_type": TEXTS | VALUES,
        "task_id": TEXTS | VALUES,
        "instance_id": st.sampled_from(["a", "b"]) | VALUES,
        "messages": st.fixed_dictionaries({"role": TEXTS, "content": VALUES}) | VALUES,
        "params": st.dictionaries(st.sampled_from(["split", "step_index", "sparse", "seed"]) | TEXTS, VALUES) | VALUES,
    },
)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running("calculator", "--idle-release-s", "1") as service:
        yield service


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=ANSWERS_WITHIN_S) as client:
        yield client


@fuzzed
@given(path=st.sampled_from(ENDPOINTS), body=REQUESTS.map(_json) | VALUES.map(_json) | st.binary(max_size=200))
def test_a_request_to_an_environment_service(service: Service, client: httpx.Client, path: str, body: bytes) -> None:
    answer = client.post(f"{service.url}/{path}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    said = answer.json()
    assert "detail" in said or "success" in said
    assert "Traceback" not in service.log, service.log[-2000:]


@pytest.fixture(scope="module")
def servers(service: Service) -> tuple[str, ...]:
    return service.url, GatewayServer().root


LINES = st.sampled_from(
    b"""GET / HTTP/1.1|POST /v1/messages HTTP/1.1|host: 127.0.0.1|content-length: 5|content-length: -1|5|hello|0||: x|
transfer-encoding: chunked|expect: 100-continue|upgrade: websocket|connection: upgrade|GET /healthz HTTP/9.9|
content-length: 99999999999999999999""".replace(b"\n", b"").split(b"|")
)


@fuzzed
@given(number=st.integers(0, 1), sent=st.lists(LINES | st.binary(max_size=60), max_size=8).map(b"\r\n".join))
def test_bytes_that_are_no_request(servers: tuple[str, ...], client: httpx.Client, number: int, sent: bytes) -> None:
    address = urlsplit(servers[number])
    with socket.create_connection((address.hostname, address.port), timeout=ANSWERS_WITHIN_S) as connection:
        connection.sendall(sent + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while piece := _received(connection):
            said += piece
    assert not said.startswith(b"HTTP/1.1 5"), said
    assert client.get(f"{servers[number]}/healthz").status_code == 200


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


KEYS = st.sampled_from(
    [
        "model",
        "path",
        "rollout",
        "num_repeat",
        "temperature",
        "trainer",
        "optim",
        "lr",
        "task_reader",
        "jsonl",
        "training",
        "file_path",
        "type",
        "backbone",
        "workflow",
        "command",
        "models",
        "engine",
        "astune",
        "params",
    ]
)
SETTINGS = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXTS, inner, max_size=4),
    max_leaves=14,
)


def _written(value: Any) -> str:
    return yaml.safe_dump({"astune": value}, allow_unicode=True)


@fuzzed
@given(text=SETTINGS.map(_written) | st.text(max_size=200) | st.text(alphabet="{}[]&*!:-?|> \nab1.", max_size=120))
def test_a_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "conf.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    _read_or_refused(lambda: load_config(file))


ROWS = st.dictionaries(
    st.sampled_from(["main_query", "task_id", "metadata", "env_type", "init_messages"]) | TEXTS, VALUES, max_size=5
)


@fuzzed
@given(lines=st.lists(ROWS.map(_json) | VALUES.map(_json) | st.binary(max_size=80), max_size=5))
def test_a_task_file(tmp_path: Path, lines: list[bytes]) -> None:
    (tmp_path / "tasks.jsonl").write_bytes(b"\n".join(lines))
    config = TaskReaderConfig.model_validate({"jsonl": {"training": {"file_path": "tasks.jsonl"}}})
    _read_or_refused(lambda: open_task_reader(config, base_dir=tmp_path).read())


def _read_or_refused(read: Callable[[], object]) -> None:
    began = time.monotonic()
    with contextlib.suppress(AstuneError):
        read()
    assert time.monotonic() - began < ANSWERS_WITHIN_S


FILES = ("run.json", "config.yaml", "metrics.jsonl", "rollout/episodes.sqlite", "rollout/vocabulary.json.zst")
QUESTIONS = ("runs", "run", "outcome", "episodes", "metrics", "episode", "tokens", "revision", "report")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("stored"), [make_episode(n) for n in range(3)])


@settings(max_examples=max(1, N // 4), deadline=None, database=None, suppress_health_check=list(HealthCheck))
@seed(SEED)
@given(file=st.sampled_from(FILES), at=st.floats(0, 1), put=st.binary(min_size=1, max_size=40), cut=st.booleans())
def test_a_stored_run(tmp_path: Path, stored: Path, file: str, at: float, put: bytes, cut: bool) -> None:
    run = tmp_path / f"{time.monotonic_ns()}"
    shutil.copytree(stored, run)
    if (run / file).exists():
        whole = (run / file).read_bytes()
        where = int(at * len(whole))
        (run / file).write_bytes(whole[:where] + put + (b"" if cut else whole[where + len(put) :]))
    with serving(run) as client:
        for name in QUESTIONS:
            answer = client.get(f"/api/{name}", params={"run": "", "id": make_episode(1).episode_id})
            defect = answer.status_code >= 500 and answer.json()["error"].endswith(" in the viewer")
            assert not defect, f"{name}: {answer.text}"  # a file of the run that cannot be read is named
    shutil.rmtree(run)
