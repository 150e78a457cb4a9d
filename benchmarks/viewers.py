"""The two viewers that bench_viewer compares: how each is started, and how beast-logger comes to know episodes of ours.

Episodes are logged as beast-logger's users log them: one entry an episode, one item a timeline, one text, title, number
and colour a token.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from astune.runs import RunDirectory
from astune.schema import Episode, Vocabulary
from benchmarks.report import ROOT

_PEER = ROOT / ".venv-beast-logger" / "bin"
_BLUE, _YELLOW = "#2f6fd6", "#d9a514"
_START_S = 60


def peer_log(run: RunDirectory, folder: Path) -> Path:
    """The run's episodes as beast-logger logs them; written once.

    Raises:
        SystemExit: beast-logger is not there, or failed.
    """
    if not _PEER.exists():
        raise SystemExit("there is no .venv-beast-logger; make it with: make env-beast-logger")
    log, done = folder / "rollout" / "rollout.json.log", folder / "done"
    if not done.exists():
        command = [str(_PEER / "python"), str(ROOT / "benchmarks" / "beast_logger_peer.py"), str(folder)]
        writer = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert writer.stdin is not None
        vocabulary = run.vocabulary()
        assert vocabulary is not None
        with run.episodes() as reader, writer.stdin:
            for episode in reader.episodes():
                writer.stdin.write(json.dumps(_as_entry(episode, vocabulary)) + "\n")
        if writer.wait() != 0:
            raise SystemExit(f"beast-logger ended with {writer.returncode}")
        done.touch()
    return log


def _as_entry(episode: Episode, vocabulary: Vocabulary) -> dict[str, Any]:
    timelines = {}
    for number, timeline in enumerate(episode.timelines):
        timelines[item_name(episode.task.task_id, episode.repeat, number)] = {
            "reward": str(episode.raw_reward),
            "step": str(episode.step),
            "content": {
                "text": [vocabulary.text([token]) for token in timeline.token_ids],
                "title": [f"logprob: {logprob:.4f}" for logprob in timeline.logprobs],
                "count": [str(number) for number in range(len(timeline.token_ids))],
                "color": [_BLUE if loss else _YELLOW for loss in timeline.loss_mask],
            },
        }
    return {"header": episode.episode_id, "timelines": timelines}


def item_name(task_id: str, repeat: int, timeline: int) -> str:
    """What a timeline is called in its entry."""
    return f"{task_id}.{repeat}.{timeline}"


@contextmanager
def our_viewer(folder: Path) -> Iterator[str]:
    """The command that a user gives; yields the address of its page once it has said it."""
    command = [sys.executable, "-m", "astune", "view", str(folder), "--port", "0", "--no-open"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        while not (found := re.search(r"http://\S+", line := process.stdout.readline())):
            if not line:
                raise SystemExit("the viewer ended")
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def peer_viewer() -> Iterator[str]:
    """beast-logger's own command; yields the address of its page."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"REACT_APP_FPORT": str(port)}
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([str(_PEER / "beast_logger_go")], env=environment, stdout=nowhere, stderr=nowhere)
    url = f"http://127.0.0.1:{port}/"
    try:
        _wait_for(url)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            httpx.get(url, trust_env=False)
            return
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise SystemExit("beast-logger's page does not answer") from None
            time.sleep(0.1)
