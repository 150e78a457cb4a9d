"""Every route of every server, asked by schemathesis what its OpenAPI document allows and what it does not.

Whatever is asked is answered or refused: no status of 500, no traceback, no hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import documents
import pytest
from drawn import ANSWERS_WITHIN_S, N, fuzzed
from hypothesis import given
from hypothesis.errors import Unsatisfiable
from rollout_stage import build_stage
from rollout_stage import task as task_of
from service_stage import running
from test_run_server import serving as run_server_at
from viewer_stage import make_episode, serving, write_run

from astune import AstuneProxy, Task, Workflow
from astune.renderers import Renderer

schemathesis = pytest.importorskip("schemathesis")

pytestmark = pytest.mark.slow
_EACH = max(2, N // 40)
"""Requests of each route that its document allows, and as many that it does not."""


def asked_everything(document: documents.Schema, url: str, **headers: str) -> int:
    """Ask each route of the document, and return how many requests were answered."""
    schema, answered = schemathesis.openapi.from_dict(document), 0
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in schemathesis.GenerationMode:

            @given(case=operation.as_strategy(generation_mode=mode))
            def once(case: Any) -> None:
                nonlocal answered
                answer = case.call(base_url=url, headers=headers, timeout=ANSWERS_WITHIN_S)
                assert answer.status_code < 500, f"{case.as_curl_command()}: {answer.text[:500]}"
                assert "Traceback" not in answer.text
                answered += 1

            with contextlib.suppress(Unsatisfiable):  # a route without parameters allows everything
                fuzzed(once, _EACH)()
    return answered


def test_an_environment_service() -> None:
    with running("calculator", "--idle-release-s", "1") as service:
        assert asked_everything(documents.environment_service(), service.url) > 7 * _EACH
        assert "Traceback" not in service.log, service.log[-2000:]


def test_a_gateway(renderer: Renderer) -> None:
    answered = 0

    class Asks(Workflow):
        def execute(self, task: Task, proxy: AstuneProxy) -> None:
            nonlocal answered
            url, key = proxy.as_oai_baseurl_apikey()
            answered = asked_everything(documents.gateway(), url.removesuffix("/v1"), authorization=f"Bearer {key}")

    ids = renderer.answer_ids(  # type: ignore[attr-defined]
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Four"}], []
    )
    stage = build_stage(renderer, Asks, replies=lambda *_: ids, episode_timeout_s=3600.0)
    [group] = asyncio.run(stage.play([task_of()]))
    assert answered > 6 * _EACH, group.failed_attempts[0].error


def test_a_viewer(tmp_path: Path) -> None:
    episode = make_episode(1)
    with serving(write_run(tmp_path, [make_episode(0), episode])) as client:
        asked_everything(documents.viewer(episode.episode_id), str(client.base_url))
        assert client.get("/healthz").status_code == 200


async def test_a_run_server(tmp_path: Path) -> None:
    async with run_server_at(tmp_path) as at:
        server, reports = at.server, at.reports
        over = threading.Event()

        def forget() -> None:  # a report that cannot be read ends a run, and the next would be refused unread
            while not over.wait(0.001):
                server.failure = None

        threading.Thread(target=forget, daemon=True).start()
        try:
            answered = await asyncio.to_thread(
                asked_everything,
                documents.run_server(),
                reports.address,
                authorization=reports._client.headers["authorization"],
            )
        finally:
            over.set()
    assert answered > 10 * _EACH
