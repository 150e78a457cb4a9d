"""A run that somebody made to harm: the viewer goes on, shows the other runs, and says what is wrong with this one."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from examples import some
from viewer_stage import get, make_episode, serving, write_run

from astune.runs import DamagedStoreError, EpisodeReader, episodes, runs_below
from astune.runs.salvage import salvage
from astune.runs.wire import pack, snapshot, unpack
from astune.schema import RunStoreError

STORE = "rollout/episodes.sqlite"
INFO: dict[str, Any] = {"experiment": "demo", "created_at": 1e9, "status": "finished"}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A folder with a good run and one that is to be doctored, `bad`."""
    good = write_run(tmp_path / "record", [make_episode()], "good")
    bad = write_run(tmp_path / "record", [make_episode()], "bad")
    bad.rename(tmp_path / "bad-run")
    (tmp_path / "bad-run").rename(bad.parent / "bad")
    assert good.is_dir()
    return tmp_path / "record"


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def written(text: str | bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 2**30)


def zeros(n_bytes: int) -> bytes:
    """A frame of zeros, written a megabyte at a time; it says how long it is."""
    frame = zstandard.ZstdCompressor(level=1).compressobj(size=n_bytes)
    piece = bytes(2**20)
    return b"".join(frame.compress(piece) for _ in range(n_bytes // 2**20)) + frame.flush()


BOMB = zeros(2**27)
ODD_INFOS = (
    {"created_at": "2026-99-99"},
    {"created_at": 1e300},
    {"created_at": -1},
    {"created_at": [1]},
    {"ended_at": "yesterday"},
    {"status": ["running"]},
    {"experiment": {"a": 1}},
    {"message": 3},
    {"kind": "other"},
)
CASES: list[tuple[str, Callable[[Path], None]]] = [
    *(
        (file, harm)
        for file in ("run.json", "run.lock", "config.yaml", "metrics.jsonl")
        for harm in (pipe, endless, sparse)
    ),
    *((f"rollout/{file}", harm) for file in ("vocabulary.json.zst", "episodes.sqlite") for harm in (pipe, endless)),
    *((f"{STORE}{end}", harm) for end in ("-wal", "-shm", "-journal") for harm in (pipe, endless)),
    *(("run.json", written(json.dumps(INFO | odd))) for odd in ODD_INFOS),
    ("run.json", written("[" * 10**6)),
    ("config.yaml", written("a: " + "[" * 10**6)),
    ("config.yaml", written("astune: {backbone: 2026-99-99, model: {path: x}}")),
    ("config.yaml", written("astune: {backbone: " + "9" * 5000 + ", model: {path: x}}")),
    ("config.yaml", written("a: &a [x]\n" + "b: &b [*a, *a]\n" * 5)),
    ("config.yaml", written("astune: &a {backbone: *a, model: {path: *a}}")),
    ("metrics.jsonl", written(b'{"step": "x", "kind": [], "time": 1e300, "elapsed_s": null, "metrics": {}}\n' * 50)),
    ("metrics.jsonl", written(b"[" * 10**6 + b"\n")),
    ("rollout/vocabulary.json.zst", written(BOMB)),
]


@pytest.mark.parametrize(("file", "harm"), some(CASES, 6), ids=lambda value: getattr(value, "__name__", value))
def test_a_doctored_file_hides_no_other_run_and_ends_no_answer(record: Path, file: str, harm: Callable[[Path], None]):
    harm(record / "bad" / "bad" / file)
    with serving(record) as client:
        began = time.monotonic()
        shown = {info["experiment"]: info for info in get(client, "runs")}
        assert shown["good"]["problems"] == []
        assert shown["good"]["episodes"] == 1
        for question in ("run", "metrics", "episodes"):
            assert client.get(f"/api/{question}", params={"run": "bad/bad"}).status_code in (200, 404, 500)
        assert get(client, "run", run=shown["good"]["run"])["problems"] == []
        assert time.monotonic() - began < 20


def doctored(store: Path, blob: bytes) -> None:
    connection = sqlite3.connect(store)
    with connection:
        connection.execute("UPDATE episodes SET blob = ?", (blob,))
        connection.execute("UPDATE texts SET folded = ?", (blob,))
    connection.close()


def changed(**changes: Any) -> bytes:
    """The record of an episode with some of it replaced."""
    return pack(snapshot(make_episode()) | changes, zstandard.ZstdCompressor())


def node(node_id: object, parent: object, **more: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "x", "agent": "a", "token_ids": [1], "logprobs": [-0.5]}
    return {"node_id": node_id, "parent": parent, **said, **more}


BLOBS = {
    "bomb": BOMB,
    "circle": changed(forest=[node(0, 1), node(1, 0)]),
    "itself": changed(forest=[node(0, 0)]),
    "negative": changed(forest=[node(0, None), node(1, -1)]),
    "no tokens": changed(forest=[node(0, None, token_ids="text")]),
    "more logprobs": changed(forest=[node(0, None, logprobs=[-1.0] * 9)]),
    "comb": changed(
        forest=[node(n, n - 1 if n else None) for n in range(4000)] + [node(4000 + n, n) for n in range(4000)]
    ),
    "unknown key": changed(forest=[node(0, None, evil=1)]),
    "task": changed(task=[1]),
    "reward": changed(reward={"raw_reward": "x"}),
    "digits": changed(judge_inputs={"$int": "9" * 5000}),
    "hex": changed(judge_inputs={"$text": "xyz"}),
    "not an object": zstandard.compress(b"[1]"),
    "size not said": zstandard.ZstdCompressor(write_content_size=False).compress(b"{}"),
}


@pytest.mark.parametrize("name", BLOBS)
def test_a_doctored_record_is_an_error_of_the_store(name: str):
    with pytest.raises(RunStoreError, match="damaged"):
        unpack(BLOBS[name])


@pytest.mark.parametrize("name", ["bomb", "circle"])
def test_a_doctored_record_is_told_where_it_is_asked_for(record: Path, name: str):
    doctored(record / "bad" / "bad" / STORE, BLOBS[name])
    with serving(record) as client:
        (row,) = get(client, "episodes", run="bad/bad")["rows"]
        assert "damaged" in get(client, "episode", 500, run="bad/bad", id=row["episode_id"])["error"]
        assert client.get("/api/episodes", params={"run": "bad/bad", "text": "sum"}).status_code in (200, 500)
        assert len(get(client, "runs")) == 2


def test_a_store_whose_table_is_a_view_is_refused(record: Path):
    store = record / "bad" / "bad" / STORE
    connection = sqlite3.connect(store)
    connection.executescript(
        """PRAGMA foreign_keys = OFF; DROP TABLE texts; DROP TABLE trainer_logprobs; ALTER TABLE episodes RENAME TO e;
        CREATE VIEW episodes AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT e.* FROM e, n;"""
    )
    connection.close()
    with pytest.raises(RunStoreError, match="views or triggers"):
        EpisodeReader(store)
    with pytest.raises(RunStoreError, match="views or triggers"):
        salvage(store, record / "salvaged")


def test_a_question_that_takes_too_long_is_given_up(record: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(episodes, "_QUERY_S", 0.2)
    with EpisodeReader(record / "bad" / "bad" / STORE) as reader:
        forever = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS seq FROM n"
        monkeypatch.setattr(episodes, "_SELECT", f"SELECT COUNT(seq) FROM ({forever})")
        with pytest.raises(RunStoreError, match=r"after 0\.2 s"):
            reader.list()


def test_numbers_of_episodes_that_cannot_be_there_are_not_looked_for(record: Path, tmp_path: Path):
    store = record / "bad" / "bad" / STORE
    connection = sqlite3.connect(store)
    with connection:
        connection.execute("UPDATE episodes SET seq = ?", (2**62,))
    connection.close()
    began = time.monotonic()
    assert salvage(store, tmp_path / "copy").kept == 0
    assert time.monotonic() - began < 20


def test_a_table_of_texts_out_of_order_ends_a_search(record: Path, monkeypatch: pytest.MonkeyPatch):
    with EpisodeReader(record / "bad" / "bad" / STORE) as reader:
        monkeypatch.setattr(episodes, "_TEXTS", "SELECT 1, folded FROM texts WHERE ? IS NOT NULL LIMIT ?")
        with pytest.raises(DamagedStoreError, match="out of order"):
            list(reader.search("nothing has this"))


def test_runs_are_found_without_opening_what_waits(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / "run.json")
    assert runs_below(tmp_path) == []


def test_a_defect_that_one_run_meets_does_not_hide_the_others(record: Path, monkeypatch: pytest.MonkeyPatch):
    count = EpisodeReader.count

    def fails(self: EpisodeReader) -> int:
        if self.path.is_relative_to(record / "bad"):
            raise ZeroDivisionError
        return count(self)

    monkeypatch.setattr(EpisodeReader, "count", fails)
    with serving(record) as client:
        shown = {info["experiment"]: info for info in get(client, "runs")}
        assert shown["good"]["problems"] == []
        assert "ZeroDivisionError" in shown["bad"]["problems"][0]
        assert shown["bad"].keys() == shown["good"].keys()


def test_an_integer_that_python_does_not_write_out_is_recorded_as_what_it_is():
    episode = make_episode()
    episode.judge_inputs = {"n": 10**9999}
    assert unpack(pack(snapshot(episode), zstandard.ZstdCompressor())).judge_inputs["n"].startswith("<int of")
