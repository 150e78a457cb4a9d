"""A run that goes on while it is looked at: everybody hears what is new, and nobody waits for anybody."""

from __future__ import annotations

import asyncio
import gc
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from viewer_stage import get, make_episode, own_logprobs, serving, writing

from astune.runs import MetricsLine, RunDirectory, metrics
from astune.viewer.server import ViewerServer


@dataclass
class Stream:
    """What one listener has heard; `expect` waits for the next event of a name, and passes over others."""

    response: httpx.Response
    events: queue.Queue[tuple[str, Any]] = field(default_factory=queue.Queue)

    def follow(self) -> None:
        name = ""
        try:
            for line in self.response.iter_lines():
                key, _, value = line.partition(": ")
                if key == "event":
                    name = value
                elif key == "data":
                    self.events.put((name, json.loads(value)))
        except httpx.HTTPError:
            pass
        self.events.put(("end", None))

    def expect(self, name: str) -> Any:
        while True:
            found, data = self.events.get(timeout=20)
            assert found != "end" or name == "end", "the stream ended"
            if found == name:
                return data


def counted(stream: Stream) -> tuple[int, int]:
    told = stream.expect("episodes")
    return told["total"], told["last"]


@contextmanager
def listening(client: httpx.Client, *runs: str) -> Iterator[Stream]:
    with client.stream("GET", "/api/events", params={"run": runs}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in response.headers
        stream = Stream(response)
        thread = threading.Thread(target=stream.follow, daemon=True)
        thread.start()
        yield stream


@pytest.mark.slow
def test_what_a_run_writes_is_heard_by_everybody_who_listens(tmp_path: Path):
    with serving(tmp_path) as client, ExitStack() as stack:
        folder = stack.enter_context(listening(client))
        assert folder.expect("runs") == {"total": 0}
        with writing(tmp_path) as run:
            assert folder.expect("runs") == {"total": 1}
            name = f"demo/{run.path.name}"
            streams = [stack.enter_context(listening(client, name)) for _ in range(2)]
            for stream in streams:
                assert stream.expect("status")["status"] == "running"
                assert counted(stream) == (0, 0)
            with run.open_episodes() as store, run.open_metrics() as metrics:
                for step in (1, 2):
                    store.append(make_episode(step=step))
                    store.flush()
                    for stream in streams:
                        while counted(stream) != (step, step):
                            pass
                    metrics.append(step, "train", {"reward/mean": 0.5})
                    for stream in streams:
                        line = stream.expect("metrics")
                        assert (line["run"], line["step"], line["metrics"]) == (name, step, {"reward/mean": 0.5})
            run.finish("finished")
            for stream in streams:
                assert stream.expect("status")["status"] == "finished"
            assert folder.expect("runs") == {"total": 1}


@pytest.mark.slow
def test_one_stream_tells_of_the_folder_and_of_several_runs(tmp_path: Path):
    with (
        writing(tmp_path, "one") as one,
        writing(tmp_path, "two") as two,
        one.open_metrics() as metrics,
        serving(tmp_path) as client,
    ):
        names = [f"{run.path.parent.name}/{run.path.name}" for run in (one, two)]
        with listening(client, *names) as stream:
            assert stream.expect("runs") == {"total": 2}
            assert [stream.expect("status")["run"] for _ in names] == names
            stream.expect("episodes")
            metrics.append(1, "train", {"reward/mean": 0.5})
            assert stream.expect("metrics")["run"] == names[0]
            assert stream.expect("runs") == {"total": 2}, "the list of runs shows another step"
            two.finish("finished")
            assert (told := stream.expect("status"))["run"] == names[1]
            assert told["status"] == "finished"


def test_what_is_written_to_episodes_later_is_told_too(tmp_path: Path):
    with writing(tmp_path) as run, serving(run.path) as client, run.open_episodes() as store:
        store.append(episode := make_episode())
        store.flush()
        with listening(client, "") as stream:
            before = stream.expect("episodes")
            store.annotate_logprobs(episode.episode_id, own_logprobs(episode))
            store.flush()
            after = stream.expect("episodes")
            assert after["version"] > before["version"]
            assert (after["total"], after["last"]) == (1, 1)


def test_a_revision_is_another_where_an_answer_is_and_the_answers_own(tmp_path: Path):
    def known() -> tuple[dict[str, str], list[str]]:
        asked = {"run": "", "id": episode.episode_id}
        answers = [get(client, name, **asked)["revision"] for name in ("episode", "tokens")]
        return get(client, "revision", **asked), answers

    with writing(tmp_path) as run, serving(run.path) as client, run.open_episodes() as store:
        episode = make_episode()
        changes: list[tuple[Callable[[], None], set[str]]] = [
            (lambda: store.append(episode), {"episode", "tokens"}),
            (lambda: store.append(make_episode(1, task="another")), set()),
            (lambda: store.append(make_episode(1)), {"episode"}),
            (lambda: store.annotate(episode.episode_id, advantages=[0.25]), {"episode", "tokens"}),
            (lambda: store.annotate_logprobs(episode.episode_id, own_logprobs(episode)), {"tokens"}),
        ]
        before: dict[str, str] = {}
        for change, changed in changes:
            change()
            store.flush()
            revision, answers = known()
            assert [revision["episode"], revision["tokens"]] == answers
            assert {name for name in revision if revision[name] != before.get(name)} == changed
            before = revision
        assert get(client, "revision", 404, run="", id="nobody")["hint"]


@pytest.mark.slow
def test_a_run_that_goes_on_from_a_checkpoint_tells_its_lines_again(tmp_path: Path):
    with writing(tmp_path) as run, serving(run.path) as client:
        with run.open_metrics() as metrics:
            for step in (1, 2, 3):
                metrics.append(step, "train", {"reward/mean": 0.1})
        with listening(client, "") as stream:
            stream.expect("episodes")
            run.rewind(1)
            assert stream.expect("metrics")["step"] == 1
            with run.open_metrics() as metrics:
                metrics.append(2, "train", {"reward/mean": 0.9})
            line = stream.expect("metrics")
            assert (line["step"], line["metrics"]["reward/mean"]) == (2, 0.9)
            assert [line["step"] for line in get(client, "metrics", run="")[0]["lines"]] == [1, 2]


def test_metrics_that_took_the_place_of_earlier_ones_are_read_anew_whatever_their_inode(tmp_path: Path):
    with writing(tmp_path) as run, run.open_metrics() as metrics, serving(run.path) as client:
        for step in (1, 2, 3):
            metrics.append(step, "train", {"reward/mean": 0.1})
        assert len(get(client, "metrics", run="")[0]["lines"]) == 3
        earlier = run.metrics_path.read_bytes().splitlines(keepends=True)
        again = [line.replace(b"0.1", b"0.9") for line in earlier]
        run.metrics_path.write_bytes(b"".join([*earlier[:1], *again[1:], *again[2:]]))  # into the same inode
        lines = get(client, "metrics", run="")[0]["lines"]
        assert [line["metrics"]["reward/mean"] for line in lines] == [0.1, 0.9, 0.9, 0.9]


def test_a_run_that_refills_its_lines_between_two_looks_tells_them_again(tmp_path: Path):
    with writing(tmp_path) as run, serving(run.path) as client:
        with run.open_metrics() as lines:
            for step in (1, 2):
                lines.append(step, "train", {"reward/mean": 0.1})
        with listening(client, "") as stream:
            stream.expect("episodes")
            refilled = tmp_path / "refilled"
            refilled.write_bytes(run.metrics_path.read_bytes().replace(b'"step":2', b'"step":3'))
            refilled.replace(run.metrics_path)  # at once: no look finds it half done
            assert stream.expect("status")["steps"] == 3
            assert [stream.expect("metrics")["step"] for _ in range(2)] == [1, 3]


def test_a_step_that_is_run_again_is_searched_again(tmp_path: Path):
    with writing(tmp_path) as run, serving(run.path) as client:
        with run.open_episodes() as store:
            for step in (1, 2):
                store.append(make_episode(step=step, answer="apples"))
        assert get(client, "episodes", run="", text="apples")["total"] == 2
        run.rewind(1)
        assert get(client, "episodes", run="", text="apples")["total"] == 1
        with run.open_episodes() as store:
            store.append(make_episode(step=2, answer="pears"))
            store.append(make_episode(1, step=2, answer="apples again"))
        assert get(client, "episodes", run="", text="apples")["total"] == 2
        assert get(client, "episodes", run="", text="pears")["total"] == 1


def test_the_newest_line_is_looked_for_again_only_when_there_is_another(tmp_path: Path, monkeypatch):
    asked: list[bytes] = []

    def counted(line: bytes) -> MetricsLine:
        asked.append(line)
        return parse_line(line)

    parse_line = metrics.parse_line
    with writing(tmp_path) as run, run.open_metrics() as lines, serving(run.path) as client:
        get(client, "runs")  # the server's own first look is over, or finds what is kept
        monkeypatch.setattr(metrics, "parse_line", counted)
        for step in (1, 2):
            lines.append(step, "train", {})
            for _ in range(3):
                assert get(client, "runs")[0]["steps"] == step
                assert get(client, "run", run="")["info"]["steps"] == step
    assert len(asked) == 2


def test_a_killed_run_is_said_to_be_killed(tmp_path: Path):
    with writing(tmp_path) as run, serving(run.path) as client:
        with listening(client, "") as stream:
            assert stream.expect("status")["status"] == "running"
            run.close()
            assert stream.expect("status")["status"] == "killed"
        again = RunDirectory.open(run.path, write=True)
        run._lock = again._lock
        assert get(client, "runs")[0]["status"] == "running"


def test_streams_end_with_the_server(tmp_path: Path):
    with writing(tmp_path) as run, ExitStack() as stack:
        with serving(run.path) as client:
            stream = stack.enter_context(listening(client, ""))
            stream.expect("episodes")
            began = time.monotonic()
        assert time.monotonic() - began < 20
        stream.expect("end")


BATCH, MOST_WAITING = 1000, 2000
"""Lines that a look finds at once, and events that wait for a listener before it is let go."""


class Listener:
    """A client of the application itself, which is greeted, and then takes what is sent only while it may."""

    def __init__(self) -> None:
        self.may_read, self.moved = asyncio.Event(), asyncio.Condition()
        self.text = b""

    async def listen(self, app: Any) -> None:
        scope = {"type": "http", "method": "GET", "path": "/api/events", "query_string": b"run="}
        await app(scope | {"headers": [(b"host", b"localhost")]}, asyncio.Event().wait, self.send)

    async def send(self, message: dict[str, Any]) -> None:
        if b"event: episodes" in self.text:
            await self.may_read.wait()
        async with self.moved:
            self.text += message.get("body", b"")
            self.moved.notify_all()

    async def reads(self, n: int, event: bytes) -> None:
        async with self.moved:
            await self.moved.wait_for(lambda: self.text.count(b"event: " + event) >= n)


def waiting_events() -> int:
    return sum(type(each).__name__ == "Event" and "viewer" in type(each).__module__ for each in gc.get_objects())


@pytest.mark.slow
def test_who_does_not_read_is_let_go_and_nothing_is_kept_for_him(tmp_path: Path):
    async def talk(run: RunDirectory) -> None:
        app = ViewerServer(run.path, "localhost", None).config.app
        reader, silent = Listener(), Listener()
        reader.may_read.set()
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.listen(app)) for each in (reader, silent)]
            for each in (reader, silent):
                await each.reads(1, b"episodes")
            with run.open_metrics() as lines:
                for batch in range(1, 2 + MOST_WAITING // BATCH):
                    for step in range(BATCH):
                        lines.append(batch * BATCH + step, "train", {"reward/mean": 0.5})
                    await reader.reads(batch * BATCH, b"metrics")
            assert waiting_events() < MOST_WAITING, "what waited is dropped, though he may never read on"
            silent.may_read.set()
            await tasks[1]
            assert silent.text.count(b"event: metrics") < MOST_WAITING
            assert not tasks[0].done()
            tasks[0].cancel()

    with writing(tmp_path) as run:
        asyncio.run(talk(run))


@pytest.mark.timeout(120)
def test_two_viewers_and_a_writer_never_wait_for_each_other(tmp_path: Path):
    """Everything is asked for again and again, while 300 episodes are written."""
    asked = [("episodes", {"text": "number", "sort": "reward"}), ("run", {}), ("metrics", {}), ("runs", {})]
    failures, done = [], threading.Event()

    def look(client: httpx.Client) -> None:
        while not done.is_set():
            for name, parameters in asked:
                answer = client.get(f"/api/{name}", params={"run": "", **parameters})
                if answer.status_code != 200:
                    failures.append(answer.text)

    with writing(tmp_path) as run, serving(run.path) as one, serving(run.path / "rollout") as other:
        lookers = [threading.Thread(target=look, args=(client,)) for client in (one, other)]
        with run.open_episodes() as store, run.open_metrics() as metrics:
            for looker in lookers:
                looker.start()
            for number in range(300):
                store.append(make_episode(number, answer=f"number {number}"))
                if number % 10 == 9:
                    store.flush()
                    metrics.append(number // 10, "train", {"reward/mean": 0.5})
            done.set()
            for looker in lookers:
                looker.join()
            for client in (one, other):
                assert get(client, "episodes", run="", text="NUMBER")["total"] == 300
            reader = sqlite3.connect(run.episodes_path)
            assert reader.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, "a viewer holds a transaction"
            reader.close()
    assert failures == []
