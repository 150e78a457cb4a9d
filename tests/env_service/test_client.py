"""The client against a small server written here, which answers as PROTOCOLS.md says and knows nothing of ours."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from ports import free_port

from astune.env_service import EnvironmentHandle, client, open_environment
from astune.env_service.client import ServiceHandle, read_task_ids
from astune.schema import EnvError, Task

pytestmark = pytest.mark.slow

GO = {"role": "assistant", "content": "```python\nprint(1)\n```"}

CREATED = (
    '{"success": true, "data": {"state": [{"role": "user", "content": "Söng: like all of them."}], '
    '"info": {"instance_id": "i", "task_id": "82e2fac_1"}}}'
)
STEPPED = (
    '{"success": true, "data": {"state": [{"role": "assistant", "content": "1"}], "reward": 0, '
    '"is_terminated": false, "info": {}}}'
)
ENDED = '{"success": true, "data": {"state": [], "reward": 1.0, "is_terminated": true, "info": {}}}'
NOTHING = '{"success": true, "data": null}'

Reply = tuple[int, str, dict[str, str]] | None
"""Status, body and headers; None closes the connection without an answer."""


class OtherServer(ThreadingHTTPServer):
    """Answers each path with its replies in order, the last one again and again, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: dict[str, list[Reply]] = {
            "/create": [(200, CREATED, {})],
            "/step": [(200, STEPPED, {})],
            "/evaluate": [(200, '{"success": true, "data": 1}', {})],
            "/get_info": [(200, '{"success": true, "data": "all of it"}', {})],
            "/release": [(200, NOTHING, {})],
            "/get_env_profile": [(200, '{"success": true, "data": ["82e2fac_1", "82e2fac_2"]}', {})],
        }
        self.asked: dict[str, list[bytes]] = defaultdict(list)
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def says(self, path: str, *replies: Reply) -> None:
        self.replies[path] = list(replies)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OtherServer

    def do_POST(self) -> None:
        self.server.paths.append(self.path)
        self.server.asked[self.path].append(self.rfile.read(int(self.headers["Content-Length"])))
        replies = self.server.replies[self.path]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if reply is None:
            self.close_connection = True
            return
        status, body, headers = reply
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body.encode())), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[OtherServer]:
    server = OtherServer()
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def handle_to(url: str, *, timeout_s: float = 30.0) -> EnvironmentHandle:
    task = Task(task_id="82e2fac_1", main_query="q", env_type="appworld", metadata={"env_url": url})
    handle = open_environment("appworld", task, 7, timeout_s=timeout_s)
    assert isinstance(handle, ServiceHandle)
    return handle


async def created(server: OtherServer, **settings: Any) -> EnvironmentHandle:
    handle = handle_to(server.url, **settings)
    await handle.create()
    return handle


async def test_an_episode_asks_to_the_letter_and_reads_what_it_is_told(server):
    server.says("/step", (200, STEPPED, {}), (200, ENDED, {}))
    handle = handle_to(server.url)
    state = await handle.create()
    assert state.state == [{"role": "user", "content": "Söng: like all of them."}]
    assert state.info == {"instance_id": "i", "task_id": "82e2fac_1"}
    step = await handle.step(GO)
    assert (step.state, step.reward, step.is_terminated) == ([{"role": "assistant", "content": "1"}], 0.0, False)
    assert (await handle.step(GO)).is_terminated
    assert (await handle.evaluate(), await handle.evaluate(sparse=False)) == (1.0, 1.0)
    assert await handle.get_info() == "all of it"
    await handle.release()

    instance_id = json.loads(server.asked["/create"][0])["instance_id"]
    assert len(instance_id) == 32
    head = f'{{"env_type":"appworld","task_id":"82e2fac_1","instance_id":"{instance_id}",'
    task = (
        '{"task_id":"82e2fac_1","main_query":"q","init_messages":[],"env_type":"appworld",'
        f'"metadata":{{"env_url":"{server.url}"}}}}'
    )
    action = r'{"role":"assistant","content":"```python\nprint(1)\n```"}'
    assert {path: [body.decode() for body in bodies] for path, bodies in server.asked.items()} == {
        "/create": [f'{head}"messages":{{}},"params":{{"seed":7,"task":{task}}}}}'],
        "/step": [f'{head}"messages":{action},"params":{{"step_index":{index}}}}}' for index in range(2)],
        "/evaluate": [f'{head}"messages":{{}},"params":{{"sparse":{sparse}}}}}' for sparse in ("true", "false")],
        "/get_info": [f'{head}"messages":{{}},"params":{{}}}}'],
        "/release": [f'{head}"messages":{{}},"params":{{}}}}'],
    }


def test_the_ids_of_a_split_are_read(server):
    assert read_task_ids(server.url, "appworld", "train", timeout_s=5) == ["82e2fac_1", "82e2fac_2"]
    assert server.asked["/get_env_profile"] == [
        b'{"env_type":"appworld","task_id":null,"instance_id":null,"messages":{},"params":{"split":"train"}}'
    ]


async def test_a_step_from_synchronous_code_is_the_same(server):
    handle = await created(server)
    assert handle.step_now(GO).state == [{"role": "assistant", "content": "1"}]
    await asyncio.to_thread(handle.step_now, GO)
    await handle.step(GO)
    assert [json.loads(body)["params"]["step_index"] for body in server.asked["/step"]] == [0, 1, 2]
    assert (handle.evaluate_now(), handle.get_info_now()) == (await handle.evaluate(), "all of it")
    await handle.release()


async def test_a_proxy_is_not_asked_for_this_machine(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    handle = await created(server)
    await handle.release()


class TestRepeating:
    @pytest.mark.parametrize(
        "stumbles",
        [
            [None],
            [(500, '{"detail": "once"}', {})] * 2,
            [(503, "not yet", {}), (429, '{"detail": "full"}', {"Retry-After": "0.1"})],
        ],
        ids=["closed", "failed twice", "busy"],
    )
    @pytest.mark.parametrize("path", ["/create", "/evaluate"])
    async def test_a_call_is_repeated_until_it_is_answered(self, server, stumbles, path):
        server.says(path, *stumbles, server.replies[path][0])
        handle = await created(server)
        assert await handle.evaluate() == 1.0
        assert len(server.asked[path]) == len(stumbles) + 1
        assert len(set(server.asked[path])) == 1
        await handle.release()

    async def test_the_server_says_when_to_come_again(self, server):
        server.says("/create", (429, '{"detail": "full"}', {"Retry-After": "0.6"}), (200, CREATED, {}))
        start = time.perf_counter()
        handle = await created(server)
        assert time.perf_counter() - start >= 0.6
        await handle.release()

    async def test_full_for_too_long_is_an_error_that_says_what_to_do(self, server):
        server.says("/create", (429, '{"detail": "all 2 places are taken"}', {"Retry-After": "30"}))
        with pytest.raises(EnvError, match=r"429 all 2 places are taken.*--max-instances.*max_env_worker"):
            await created(server, timeout_s=20.0)
        assert len(server.asked["/create"]) == 1

    async def test_a_server_that_goes_on_failing_is_given_up(self, server):
        server.says("/evaluate", (500, '{"detail": "no such table"}', {}))
        handle = await created(server)
        with pytest.raises(EnvError, match=rf"evaluate of task 82e2fac_1 at {server.url}/evaluate: 500 no such table"):
            await handle.evaluate()
        assert len(server.asked["/evaluate"]) == 3
        await handle.release()

    @pytest.mark.parametrize("status", [400, 404, 409, 410, 422])
    async def test_what_the_server_refuses_is_not_asked_again(self, server, status):
        server.says("/step", (status, '{"detail": "no instance i"}', {"Step-Index": "0"}))
        handle = await created(server)
        with pytest.raises(EnvError, match=f"{status} no instance i"):
            await handle.step(GO)
        assert len(server.asked["/step"]) == 1
        await handle.release()

    @pytest.mark.parametrize("lost", [None, (502, "bad gateway", {})], ids=["closed", "502"])
    async def test_a_step_that_may_have_been_taken_is_not_sent_again(self, server, lost):
        server.says("/step", lost, (200, STEPPED, {}))
        handle = await created(server)
        with pytest.raises(EnvError):
            await handle.step(GO)
        assert len(server.asked["/step"]) == 1
        await handle.release()

    @pytest.mark.parametrize("lost", [None, (502, "bad gateway", {})], ids=["closed", "502"])
    async def test_unless_the_server_takes_a_repeated_step_once(self, server, lost):
        server.says("/create", (200, CREATED, {"Step-Index": "0"}))
        server.says("/step", lost, (200, STEPPED, {"Step-Index": "1"}))
        handle = await created(server)
        assert (await handle.step(GO)).reward == 0.0
        assert len(server.asked["/step"]) == 2
        assert len(set(server.asked["/step"])) == 1
        await handle.release()


class TestNothingIsInvented:
    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/create", "<html>"),
            ("/create", '"OK"'),
            ("/create", '{"success": true}'),
            ("/create", '{"success": false, "data": null}'),
            ("/create", '{"success": true, "data": null}'),
            ("/create", '{"success": true, "data": {"info": {}}}'),
            ("/create", '{"success": true, "data": {"state": {"role": "user", "content": "x"}, "info": {}}}'),
            ("/create", '{"success": true, "data": {"state": ["x"], "info": {}}}'),
            ("/create", '{"success": true, "data": {"state": [], "info": []}}'),
            ("/step", '{"success": true, "data": {"state": [], "reward": 0, "info": {}}}'),
            ("/step", '{"success": true, "data": {"state": [], "reward": null, "is_terminated": true}}'),
            ("/step", '{"success": true, "data": {"state": [], "reward": "1", "is_terminated": true}}'),
            ("/step", '{"success": true, "data": {"state": [], "reward": NaN, "is_terminated": true}}'),
            ("/step", '{"success": true, "data": {"state": null, "reward": 0, "is_terminated": true}}'),
            ("/evaluate", '{"success": true, "data": null}'),
            ("/evaluate", '{"success": true, "data": true}'),
            ("/evaluate", '{"success": true, "data": Infinity}'),
            ("/evaluate", '{"success": false, "data": 1}'),
            ("/get_info", '{"success": true, "data": {"a": 1}}'),
        ],
    )
    async def test_an_answer_unlike_the_protocol_is_an_error(self, server, path, body):
        server.says(path, (200, body, {}))
        handle = handle_to(server.url) if path == "/create" else await created(server)
        call = getattr(handle, path.removeprefix("/"))
        with pytest.raises(EnvError, match="82e2fac_1"):
            await (call(GO) if path == "/step" else call())

    @pytest.mark.parametrize("data", ["null", '"a"', "[[]]", '{"a": 1}'])
    def test_ids_are_a_list_of_ids(self, server, data):
        server.says("/get_env_profile", (200, f'{{"success": true, "data": {data}}}', {}))
        with pytest.raises(EnvError, match="expected a list of task ids"):
            read_task_ids(server.url, "appworld", "train", timeout_s=5)

    async def test_a_server_that_is_not_there_is_an_error_with_its_address(self):
        url = f"http://127.0.0.1:{free_port()}"
        handle = handle_to(url, timeout_s=0.5)
        with pytest.raises(EnvError, match=rf"create of task 82e2fac_1 at {url}/create: no answer .*python -m"):
            await handle.create()

    async def test_a_server_that_does_not_answer_is_an_error_in_time(self, monkeypatch):
        monkeypatch.setattr(client, "_indexed_urls", set())  # an earlier server may have had this port
        with socket.create_server(("127.0.0.1", 0)) as silent:
            handle = handle_to(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=3.0)
            start = time.perf_counter()
            with pytest.raises(EnvError, match=r"no answer for 2\.85 s; .*raise rollout.call_timeout_s"):
                await handle.create()
            assert time.perf_counter() - start < 60
            silent.accept()[0].close()
            silent.settimeout(0)
            with pytest.raises(BlockingIOError):  # what may not know repetitions is asked once
                silent.accept()

    async def test_an_address_needs_its_scheme(self):
        with pytest.raises(EnvError, match="write it with http://"):
            await handle_to("127.0.0.1:8080").create()


class TestOrder:
    async def test_a_release_is_done_once(self, server):
        handle = await created(server)
        await handle.release()
        await handle.release()
        assert server.paths == ["/create", "/release"]
        await handle_to(server.url).release()
        assert server.paths == ["/create", "/release"]

    @pytest.mark.parametrize("reply", [(200, '{"success": false, "data": null}', {}), (404, "unknown", {})])
    async def test_an_instance_that_is_gone_is_released(self, server, reply):
        server.says("/release", reply)
        handle = await created(server)
        await handle.release()

    async def test_an_instance_that_did_not_close_is_an_error(self, server):
        server.says("/release", (500, '{"detail": "the door is stuck"}', {}), (200, NOTHING, {}))
        handle = await created(server)
        with pytest.raises(EnvError, match="500 the door is stuck"):
            await handle.release()

    async def test_use_before_create_or_after_release_is_an_error(self, server):
        handle = handle_to(server.url)
        for _ in range(2):
            with pytest.raises(EnvError, match="before create or after release"):
                await handle.evaluate()
            with pytest.raises(EnvError, match="before create or after release"):
                handle.step_now(GO)
            await handle.create()
            await handle.release()

    async def test_a_step_after_the_end_is_an_error_here(self, server):
        server.says("/step", (200, ENDED, {}))
        handle = await created(server)
        await handle.step(GO)
        with pytest.raises(EnvError, match="the episode is over"):
            await handle.step(GO)
        assert len(server.asked["/step"]) == 1
        await handle.release()
