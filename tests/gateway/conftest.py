"""The real tokenizer's renderer, and both ways of the SDKs' clients."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from astune.gateway import in_process
from astune.gateway.server import GatewayServer


class ByHttp(GatewayServer):
    """The gateway on a port, for clients that otherwise need none."""

    def client(self, kind: type[Any]) -> Any:
        return kind()


@pytest.fixture(params=["in process", "by HTTP"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with `as_openai_client` and `as_anthropic_client` as they are, and over a real connection."""
    if request.param == "by HTTP":
        monkeypatch.setattr(in_process, "in_process_gateway", _by_http)


@functools.cache
def _by_http() -> ByHttp:
    return ByHttp()
