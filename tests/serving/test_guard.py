"""The environment service behind its guard: a real server process, and a real client of a hostile one."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from service_stage import ROOT, Service, refused, running, world

from astune.env_service.client import read_task_ids
from astune.gateway.server import GatewayServer
from astune.schema import EnvError
from astune.serving import read_json, server


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running(world("Counter")) as service:
        yield service


def test_a_name_that_was_pointed_to_this_machine_is_refused(service: Service) -> None:
    answer = httpx.post(
        f"{service.url}/get_env_profile", json={}, headers={"Host": "evil.example:8080"}, trust_env=False
    )
    assert answer.status_code == 403
    assert "127.0.0.1" in answer.json()["detail"]


def test_a_body_over_the_limit_is_refused_with_and_without_a_length(service: Service) -> None:
    headers = {"Content-Type": "application/json"}
    piece = b" " * 2**20
    for body in (piece * 33, (piece for _ in range(33))):
        answer = httpx.post(f"{service.url}/create", content=body, headers=headers, trust_env=False, timeout=30)
        assert answer.status_code == 413


@pytest.mark.parametrize(
    "body", [b"[" * 200 + b"]" * 200, b"[" * 10**5, b'{"a": NaN}', b'{"a": 1e999}', b'{"a": "\\ud800"}']
)
def test_json_that_could_not_be_passed_on_is_refused(body: bytes, service: Service) -> None:
    with pytest.raises(ValueError):
        read_json(body)
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{service.url}/create", content=body, headers=headers, trust_env=False)
    assert answer.status_code == 422


def test_a_service_with_a_token_answers_only_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"PYTHONPATH": str(ROOT), "ASTUNE_SERVICE_TOKEN": "secret"}
    with running(world("Counter"), variables=variables) as service:
        assert service.post("get_env_profile").status_code == 401
        assert httpx.get(f"{service.url}/healthz", trust_env=False).status_code == 200
        monkeypatch.setenv("ASTUNE_SERVICE_TOKEN", "secret")
        assert read_task_ids(service.url, "Counter", "train", timeout_s=30) == ["a", "b", "ü"]


@pytest.mark.slow
def test_a_service_that_drips_bytes_is_given_up_at_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
                while not over.wait(0.05):
                    connection.sendall(b" ")

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(EnvError, match="no answer for 1 s"):
            read_task_ids(f"http://127.0.0.1:{listening.getsockname()[1]}", "any", "train", timeout_s=1)
        over.set()
        assert time.monotonic() - began < 20


def test_an_answer_without_end_is_not_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sent = 0

        def flood() -> None:
            nonlocal sent
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n")
                while sent < 1 << 30:
                    sent += connection.send(b" " * (1 << 20))

        threading.Thread(target=flood, daemon=True).start()
        with pytest.raises(EnvError, match="the answer is larger than 32 MiB"):
            read_task_ids(f"http://127.0.0.1:{listening.getsockname()[1]}", "any", "train", timeout_s=60)
        assert sent < 64 << 20


def test_pages_of_other_sites_get_no_answer(service: Service) -> None:
    for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
        answer = httpx.get(f"{service.url}/healthz", headers={"sec-fetch-site": site}, timeout=60, trust_env=False)
        assert answer.status_code == status


def test_an_environment_service_that_others_can_reach_needs_a_token() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ASTUNE_SERVICE_TOKEN"}
    err = refused("--env", "calculator", "--portal", "0.0.0.0", "--port", "0", environment=environment)
    assert "no token is set" in err
    assert "ASTUNE_SERVICE_TOKEN" in err


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> GatewayServer:
    """A gateway that waits half a second for what it usually waits longer for, and has room for eight connections."""
    monkeypatch.setattr(server, "HEAD_S", 0.5)
    monkeypatch.setattr(server, "BODY_S", 0.5)
    monkeypatch.setattr(server, "most_connections", lambda: 8)
    return GatewayServer()


@pytest.mark.slow
def test_a_connection_on_which_no_whole_request_arrives_is_closed(impatient: GatewayServer) -> None:
    beginnings = [
        b"",
        b"GET /healthz HT",
        b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 900\r\n\r\n{",
    ]
    port = int(impatient.root.rpartition(":")[2])
    for beginning in beginnings:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(beginning)
            with contextlib.suppress(OSError):  # it was reset while a byte was on its way
                while _drips(connection):
                    assert time.monotonic() - began < 10, beginning
            assert time.monotonic() - began > 0.3


def _drips(connection: socket.socket) -> bool:
    """Send one more byte; whether the server still holds the connection."""
    connection.settimeout(0.1)
    try:
        connection.send(b"x")
        return connection.recv(1) != b""
    except TimeoutError:
        return True


@pytest.mark.slow
def test_idle_connections_make_room_for_a_caller_with_a_request(
    impatient: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 60)
    port = int(impatient.root.rpartition(":")[2])
    with contextlib.ExitStack() as held:
        for _ in range(30):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert httpx.get(f"{impatient.root}/healthz", trust_env=False).status_code == 200
