"""The message at the end of a run, as a real gateway receives it."""

from __future__ import annotations

import http.server
import json
import threading
import time
from pathlib import Path

import pytest
from examples import some

from astune.cli.app import run as astune
from astune.launcher import end_message
from astune.launcher.end_message import missing_gateway, send_end_message
from astune.runs import RunDirectory


class Gateway(http.server.ThreadingHTTPServer):
    """Records every POST; `status` and `delay_s` make it fail."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str | None, dict]] = []
        self.status = 200
        self.stop = threading.Event()
        self.stop.set()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805 - the server is `self` here
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.received.append((handler.path, handler.headers["Content-Type"], json.loads(body)))
                self.stop.wait()
                handler.send_response(self.status)
                handler.end_headers()

            def log_message(handler, *arguments: object) -> None:  # noqa: N805
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def gateway():
    server = Gateway()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.stop.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path: Path):
    with RunDirectory.create(tmp_path, "demo") as run:
        yield run


@pytest.mark.parametrize(
    ("ends", "status", "says"),
    [
        ("finished", "success", "demo finished"),
        ("interrupted", "interrupted", "demo was interrupted before its first checkpoint"),
        ("failed", "failure", "demo failed before its first checkpoint: the engine is gone"),
    ],
)
def test_phones_get_one_message_with_every_field(ends, status, says, run, gateway):
    run.finish(ends, "the engine is gone\nmore" if ends == "failed" else "")
    environ = {"PHONE_NUMBERS": "123, +4917;  9", "ASTUNE_SMS_URL": f"{gateway.url}/sms"}
    assert send_end_message(run, environ=environ) == []
    ((path, kind, body),) = gateway.received
    assert (path, kind) == ("/sms", "application/json")
    assert body.pop("message").startswith(says)
    assert body == {"phone_numbers": ["123", "+4917", "9"], "run": f"demo/{run.path.name}", "status": status}


def test_a_webhook_gets_the_same_without_phone_numbers(run, gateway):
    run.finish("finished")
    environ = {
        "PHONE_NUMBERS": "1",
        "ASTUNE_SMS_URL": f"{gateway.url}/sms",
        "ASTUNE_WEBHOOK_URL": f"{gateway.url}/hook",
    }
    assert send_end_message(run, environ=environ) == []
    (_, _, sms), (_, _, hook) = gateway.received
    assert sms == {"phone_numbers": ["1"], **hook}
    assert set(hook) == {"run", "status", "message"}
    gateway.received.clear()
    assert send_end_message(run, environ={"ASTUNE_WEBHOOK_URL": gateway.url}) == []
    assert len(gateway.received) == 1


@pytest.mark.parametrize(
    "environ", [{}, {"PHONE_NUMBERS": "1"}, {"ASTUNE_SMS_URL": "http://127.0.0.1:1"}, {"PHONE_NUMBERS": " "}]
)
def test_nothing_is_sent_where_nobody_asks(environ, run):
    assert send_end_message(run, environ=environ) == []


def test_a_missing_gateway_is_said_once_at_the_start():
    assert missing_gateway({}) is None
    assert missing_gateway({"PHONE_NUMBERS": "1", "ASTUNE_SMS_URL": "x"}) is None
    assert "ASTUNE_SMS_URL" in (missing_gateway({"PHONE_NUMBERS": "1"}) or "")


def test_a_gateway_that_refuses_is_one_warning_without_its_secret(run, gateway):
    gateway.status = 500
    (warning,) = send_end_message(run, environ={"ASTUNE_WEBHOOK_URL": f"{gateway.url}/secret-token"})
    assert warning == "the message at the end of the run could not be sent to 127.0.0.1: HTTP status 500"


def test_a_gateway_that_is_not_there_is_one_warning_each(run, port):
    url = f"http://127.0.0.1:{port}"
    environ = {"PHONE_NUMBERS": "1", "ASTUNE_SMS_URL": url, "ASTUNE_WEBHOOK_URL": "no address"}
    warnings = send_end_message(run, environ=environ)
    assert len(warnings) == 2
    assert all("could not be sent to" in warning for warning in warnings)


def test_a_gateway_that_does_not_answer_is_not_waited_for(run, gateway, monkeypatch):
    monkeypatch.setattr(end_message, "DEADLINE_S", 0.3)
    gateway.stop.clear()
    began = time.monotonic()
    (warning,) = send_end_message(run, environ={"ASTUNE_WEBHOOK_URL": gateway.url})
    assert time.monotonic() - began < 60
    assert "no answer" in warning or "timed out" in warning


def test_a_failure_that_the_run_did_not_record_is_told(run, gateway):
    assert send_end_message(run, "the disk is full", {"ASTUNE_WEBHOOK_URL": gateway.url}) == []
    ((_, _, body),) = gateway.received
    assert body["status"] == "failure"
    assert body["message"].endswith("the disk is full")


@pytest.mark.parametrize(
    ("words", "why"),
    some(
        [
            (["--with", "env=no_such_command_at_all"], "companion env ended with exit status 127"),
            (["--set", "model.path=./nowhere"], "model.path: './nowhere' is no folder"),
            (["--set", "seeed=1"], "unknown key"),
        ],
        1,
    ),
)
def test_a_start_that_fails_is_told(words, why, gateway, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PHONE_NUMBERS", "18812341234")
    monkeypatch.setenv("ASTUNE_SMS_URL", gateway.url)
    (tmp_path / "demo.yaml").write_text("astune: {}\n")
    with pytest.raises(SystemExit):
        astune(["--conf", "demo.yaml", *words])
    ((_, _, body),) = gateway.received
    assert (body["phone_numbers"], body["run"], body["status"]) == (["18812341234"], "demo", "failure")
    assert body["message"].startswith("demo failed before its run began: ")
    assert why in body["message"]
