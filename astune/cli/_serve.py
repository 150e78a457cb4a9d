"""`astune serve MODEL...`: models for people, with keys, a log of conversations and feedback on them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from astune.app.console import Console
from astune.app.evaluation import with_model
from astune.app.execution import silence_progress_bars
from astune.app.serving import ModelServer, normalised
from astune.config import load_config
from astune.feedback import Masker
from astune.schema import ConfigError


def serve(
    models: Sequence[str],
    *,
    shares: Sequence[float],
    clients: Sequence[str],
    store: Path,
    host: str,
    port: int,
    per_minute: int | None,
    masker: Masker,
    overrides: Sequence[str],
    dry_run: bool,
) -> int:
    """Answer requests until Ctrl-C; `dry_run` says which, and loads nothing. Raises ConfigError if there is not one
    share for each model."""
    if shares and len(shares) != len(models):
        raise ConfigError(f"{len(models)} models have {len(shares)} shares", hint="give --share once for each model")
    config = load_config(None, list(overrides))
    each = normalised(shares or [1.0] * len(models))
    configs = [(with_model(config, model), share) for model, share in zip(models, each, strict=True)]
    console = Console()
    if dry_run:
        for version, share in configs:
            console.say(f"{share:.0%} of the sessions would be answered by {version.model.path}")
        console.say(f"at http://{host}:{port} to {', '.join(clients or ['default'])}, and kept in {store}")
        return 0
    if config.engine.type == "in_process":
        silence_progress_bars()
    keys = {name: os.environ.get(variable_of(name), "") for name in clients or ["default"]}
    server = ModelServer(configs, clients=keys, store=store, host=host, port=port, per_minute=per_minute, masker=masker)

    async def work() -> None:
        ready = asyncio.Event()
        serving = asyncio.ensure_future(server.serve(ready))
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            _announce(server, store, console)
        await serving

    # A script's background processes begin with SIGINT ignored; one that is sent all the same is meant.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # how one ends it
        asyncio.run(work())
    server.store.close()
    return 0


def variable_of(client: str) -> str:
    """The environment variable that may hold a client's key."""
    return f"ASTUNE_KEY_{re.sub(r'[^A-Za-z0-9]', '_', client).upper()}"


def _announce(server: ModelServer, store: Path, console: Console) -> None:
    key = next(iter(server.keys.values()))
    root = server.base_url.removesuffix("/v1")
    body = json.dumps({"conversation_id": "answer-...", "rating": 1})
    lines = [
        *(f"{version.share:.0%} of the sessions: {version.name}" for version in server.versions),
        f"conversations and feedback: {store}",
        "",
        f"export OPENAI_BASE_URL={server.base_url} ANTHROPIC_BASE_URL={root}",
        *(f"{name}: export OPENAI_API_KEY={key} ANTHROPIC_API_KEY={key}" for name, key in server.keys.items()),
        "",
        f"curl {root}/feedback -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -d '{body}'",
    ]
    for line in lines:
        console.say(line)
