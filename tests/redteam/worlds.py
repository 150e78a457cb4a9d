"""What stands around an attack, and naive harnesses, each as small as such things are written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from attacks import Attack
from rollout_stage import build_stage, task

from astune.config.schema import ProgramConfig
from astune.schema import Episode
from astune.workflow.program import program_workflow

Printed = str
Play = Callable[[str], Printed]
"""Runs code as one harness does; returns what it printed."""
SECRET = "ASTUNE_TEST_SECRET"


class World:
    """A folder with the reference answer, a process of somebody else with a secret, and a server."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        self.folder = folder
        self.answers = folder / "answers.txt"
        self.answers.write_text("the answer is 42")
        self.answers.chmod(0o644)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.victim: subprocess.Popen[bytes] | None = None

    def reached(self, attack: Attack, play: Play) -> bool:
        """Whether the attack, with what comes before and after it, reached its goal in one harness."""
        self.victim = subprocess.Popen(["sleep", "300"], env={**os.environ, SECRET: "do-not-tell"})
        try:
            printed = [play(self._placed(code)) for code in (attack.before, attack.code, attack.after) if code]
            match attack.seen:
                case "victim":
                    return self._victim_ended()
                case "left":
                    return bool(self._left())
                case "flood":
                    return len(printed[-1]) > 1 << 20
            return "REACHED" in printed[-1]
        finally:
            self.victim.kill()
            self.victim.wait()
            for pid in self._left():
                os.kill(pid, signal.SIGKILL)
            Path("/tmp", self.mark).unlink(missing_ok=True)
            (self.folder / "new.py").unlink(missing_ok=True)

    def _placed(self, code: str) -> str:
        places = {
            "answers": str(self.answers),
            "folder": str(self.folder),
            "trainer": self.victim.pid if self.victim is not None else 0,
            "victim": self.victim.pid if self.victim is not None else 0,
            "port": self.listening.getsockname()[1],
            "mark": self.mark,
        }
        for name, place in places.items():
            code = code.replace(f"{{{name}!r}}", repr(place)).replace(f"{{{name}}}", str(place))
        return code

    def _victim_ended(self) -> bool:
        assert self.victim is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.victim.wait(0.5)
        return self.victim.poll() is not None

    def _left(self) -> list[int]:
        found: list[int] = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if self.mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
        return found


def plain_subprocess(folder: Path) -> Play:
    """The naive sandbox: a process with a timeout, in a folder that the next call has too."""
    folder.mkdir()

    def play(code: str) -> Printed:
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, SECRET: "do-not-tell"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return ran.stdout

    return play


IN_THE_BOX = """
expected = {{3: 6, 5: 10}}
{code}
for x, y in expected.items():
    assert double(x) == y
print("PASS")
"""
OUT_OF_THE_BOX = """
import json
{code}
print(json.dumps([double(x) for x in (3, 5)]))
"""


def naive_grade(play: Play, code: str) -> bool:
    """The grader runs in the same process as what it grades."""
    return play(IN_THE_BOX.format(code=code)).strip().endswith("PASS")


def grade(play: Play, code: str) -> bool:
    """The code says what it computes; whether that is right is decided outside, where the expected values are."""
    lines = play(OUT_OF_THE_BOX.format(code=code)).strip().splitlines()
    try:
        return bool(lines) and json.loads(lines[-1]) == [6, 10]
    except ValueError:
        return False


class NaiveGateway(BaseHTTPRequestHandler):
    """Inference and rewards behind one key, which stays valid; keeps the last reward in `server.reward`."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("reward"):
            self.server.reward = body["reward"]  # type: ignore[attr-defined]
        said = json.dumps({"choices": [{"message": {"role": "assistant", "content": "Four"}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def naive_gateway() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), NaiveGateway) as server:
        server.reward = None  # type: ignore[attr-defined]
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class NaiveService(BaseHTTPRequestHandler):
    """Environments numbered from 1, for whoever asks; what they know is in what they answer."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        live: dict[str, Any] = self.server.live  # type: ignore[attr-defined]
        match self.path:
            case "/create":
                live[str(len(live) + 1)] = {"answer": "64"}
                said: Any = {"instance_id": str(len(live))}
            case "/release":
                said = {"success": live.pop(str(body["instance_id"]), None) is not None}
            case _:
                said = {"data": live.get(str(body.get("instance_id")), {})}
        text = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def naive_service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), NaiveService) as server:
        server.live = {}  # type: ignore[attr-defined]
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


PRELUDE = """
import json, os, sys, urllib.request, urllib.error
BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
def reached():
    print("REACHED")
    try: print("REACHED", file=open({report!r}, "a"))
    except OSError: pass
def post(path, body, key=KEY):
    headers = {{"authorization": "Bearer " + key, "content-type": "application/json"}}
    asked = urllib.request.Request(path, json.dumps(body).encode(), headers)
    try: return urllib.request.urlopen(asked, timeout=10).status
    except urllib.error.HTTPError as refused: return refused.code
def set_reward():
    root = BASE.removesuffix("/v1")
    for path in ("/v1/reward", "/reward", "/v1/episodes/reward", "/workers/result", "/lease/result", "/report"):
        post(root + path, {{"reward": 7.0, "key": KEY}})
CHAT = {{"model": "m", "messages": [{{"role": "user", "content": "Hi"}}]}}
def again(file):
    if os.path.exists(file):
        base, key = json.load(open(file))
        if post(base + "/chat/completions", CHAT, key) == 200: reached()
    json.dump([BASE, KEY], open(file, "w"))
post(BASE + "/chat/completions", CHAT)
"""


def naive_program(folder: Path, program: str, server: Any) -> Any:
    """Runs the program in a folder that all episodes share, with our environment, and believes its reward."""
    given = folder / "task.json"
    given.write_text(json.dumps({"main_query": "Hi", "answer": "SECRET"}))
    address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    variables = {"OPENAI_BASE_URL": address, "OPENAI_API_KEY": "k", "ASTUNE_TASK": str(given), "A_TOKEN": "do-not-tell"}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    with contextlib.suppress(ValueError, IndexError, TypeError):
        return json.loads(ran.stdout.splitlines()[-1])["reward"]
    return server.reward


def mean_of(rewards: list[float]) -> float:
    """What an unguarded baseline does."""
    return sum(rewards) / len(rewards)


def played(renderer: Any, command: list[str], task_id: str = "t", **settings: Any) -> Episode:
    """The episode of a program behind the gateway; what it printed is `judge_inputs["stdout"]`."""
    ids = renderer.answer_ids([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Four"}], [])
    workflow = program_workflow(ProgramConfig(command=command, **settings))
    stage = build_stage(renderer, workflow, replies=lambda *_: ids)
    [group] = asyncio.run(stage.play([task(task_id, metadata={"answer": "SECRET"})]))
    assert group.episodes, group.failed_attempts[0].error
    return group.episodes[0]


def sandboxed_program(renderer: Any) -> Play:
    """Code as an agent's program with `sandboxed: true`, which asks its model once before."""

    def play(code: str) -> Printed:
        program = PRELUDE.format(report=os.devnull) + code
        episode = played(renderer, [sys.executable, "-c", program], sandboxed=True, memory_mb=384)
        return str(episode.judge_inputs["stdout"])

    return play
