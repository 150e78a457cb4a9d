"""`astune gateway MODEL`: the gateway of training on one model without a run, for trying an agent by hand.

All requests are one long episode: an extended conversation is recognised, and its sampled tokens are reused exactly, as
in training. Nothing is judged, recorded or trained.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from astune.app.console import Console
from astune.app.evaluation import with_model
from astune.app.execution import silence_progress_bars
from astune.app.serving import agent_of
from astune.backbone.engines import OpenModel, open_model
from astune.config import load_config
from astune.engine.own import load_engine_class
from astune.gateway.answer_store import AnswerStore
from astune.gateway.server import GatewayServer
from astune.schema import ConfigError

KEY_VARIABLE = "ASTUNE_GATEWAY_KEY"
"""Holds the key that clients send; without it a random one is made at every start."""
_SESSION = "gateway"


def serve_model(model: str, port: int, answers: Path | None, overrides: Sequence[str]) -> int:
    """Answer requests for `model`, or for the best model of a run, until Ctrl-C. The file `answers` stores answers, for
    requests that are repeated after a restart."""
    key = os.environ.get(KEY_VARIABLE) or None
    if answers is not None and key is None:
        raise ConfigError(
            "--answers finds answers again by the key that they were asked with, and each start has a new one",
            hint=f"set {KEY_VARIABLE} to a key of your own",
        )
    config = with_model(load_config(None, overrides), model)
    server = GatewayServer(port, store=AnswerStore(answers) if answers is not None else None, at_once=False)
    if config.engine.type == "in_process":
        silence_progress_bars()

    async def serve() -> None:
        async with open_model(config, own=load_engine_class(config)) as opened:
            opened.engine.open_session(_SESSION)
            address = agent_of(opened, _SESSION).served_at(server, key)
            server.serve()
            _announce(opened, *address)
            await asyncio.Event().wait()

    # A script's background processes begin with SIGINT ignored; one that is sent all the same is meant.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # how one ends it
        asyncio.run(serve())
    return 0


def _announce(opened: OpenModel, base_url: str, key: str) -> None:
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "Hello!"}]})
    console = Console()
    for line in (
        f"{opened.config.model.path} is served; Ctrl-C ends it",
        "",
        f"export OPENAI_BASE_URL={base_url} OPENAI_API_KEY={key}",
        f"export ANTHROPIC_BASE_URL={base_url.removesuffix('/v1')} ANTHROPIC_API_KEY={key}",
        "",
        f"curl {base_url}/chat/completions -H 'Authorization: Bearer {key}' \\",
        f"  -H 'Content-Type: application/json' -d '{body}'",
    ):
        console.say(line)
