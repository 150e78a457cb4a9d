"""Stores that version 1 wrote: they are read as they are, and become today's when their run goes on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import zstandard

from astune.runs import EpisodeFilter, EpisodeReader, EpisodeStore
from astune.runs.wire import pack, snapshot
from astune.schema import Episode

VERSION_1 = """
CREATE TABLE episodes (
    seq INTEGER PRIMARY KEY, episode_id TEXT NOT NULL UNIQUE, split TEXT NOT NULL, step INTEGER NOT NULL,
    task_id TEXT NOT NULL, repeat INTEGER NOT NULL, attempt INTEGER NOT NULL, status TEXT NOT NULL, reward REAL,
    success INTEGER, error_type TEXT, error_text TEXT, n_tokens INTEGER NOT NULL, n_sampled INTEGER NOT NULL,
    n_trained INTEGER NOT NULL, n_turns INTEGER NOT NULL, seconds REAL, created_at REAL NOT NULL, advantages TEXT,
    not_trained TEXT, blob BLOB NOT NULL
);
CREATE INDEX episodes_by_step ON episodes (split, step);
CREATE INDEX episodes_by_task ON episodes (split, task_id, step);
CREATE INDEX episodes_by_status ON episodes (status) WHERE status = 'error';
PRAGMA application_id = 0x41535452;
PRAGMA user_version = 1;
"""


def write_version_1(path: Path, episodes: list[Episode]) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(f"PRAGMA journal_mode = WAL; {VERSION_1}")
    for seq, episode in enumerate(episodes, start=1):
        known = (episode.split, episode.step, episode.task.task_id, episode.repeat, episode.attempt, episode.status)
        counts = (54, 40, 54, 2, 0.5, 1.7e9 + seq, "[0.5]", None)
        blob = pack(snapshot(episode), zstandard.ZstdCompressor())
        values = (seq, episode.episode_id, *known, 1.0, 1, None, None, *counts, blob)
        connection.execute(f"INSERT INTO episodes VALUES ({', '.join('?' * 21)})", values)
    connection.commit()
    connection.close()


@pytest.fixture
def old(tmp_path: Path, episode) -> Path:
    write_version_1(tmp_path / "episodes.sqlite", [episode(step, answer=f"answer {step}") for step in (1, 2, 3)])
    return tmp_path / "episodes.sqlite"


def test_an_old_store_is_read_without_what_it_lacks(old: Path, episode) -> None:
    with EpisodeReader(old) as reader:
        row = reader.list()[0]
        assert (row.n_branches, row.agents, row.n_tokens, row.advantages) == (None, None, 54, [0.5])
        assert reader.read(row.episode_id) == episode(1, answer="answer 1")
        assert list(reader.search("ANSWER 2")) == [2]
        assert reader.trainer_logprobs(row.episode_id) is None
        assert [found.step for found in reader.find(EpisodeFilter(step=2))] == [2]
        assert reader.find(EpisodeFilter(agent="agent")) == []
        assert len(reader.summaries()) == 3
    assert sqlite3.connect(old).execute("PRAGMA user_version").fetchone() == (1,)


def test_an_old_store_that_is_gone_on_with_becomes_todays(old: Path, episode) -> None:
    with EpisodeReader(old) as reader:
        before = reader.list()
    with EpisodeStore(old) as store:
        store.append(episode(4, answer="answer 4"))
        store.flush()
        assert store.rewind(3) == 1
        rows = store.list()
        assert [(row.n_branches, row.agents) for row in rows] == [(1, ["agent"])] * 3
        assert ([row.n_trained for row in before], [row.n_trained for row in rows]) == ([54] * 3, [40] * 3)
        assert [row.created_at for row in rows] == [row.created_at for row in before]
        assert list(store.search("answer 2")) == [2]
        assert store.read(rows[2].episode_id) == episode(3, answer="answer 3")
    connection = sqlite3.connect(old)
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    EpisodeStore(old.with_name("fresh.sqlite")).close()
    fresh = sqlite3.connect(old.with_name("fresh.sqlite"))
    schema = "SELECT name, sql FROM sqlite_master ORDER BY name"
    assert connection.execute(schema).fetchall() == fresh.execute(schema).fetchall()


def test_a_store_that_cannot_be_brought_up_to_date_stays_as_it_was(old: Path, episode) -> None:
    with sqlite3.connect(old) as connection:
        connection.execute("UPDATE episodes SET blob = x'00' WHERE seq = 2")
    connection.close()
    with pytest.raises(Exception, match="damaged"):
        EpisodeStore(old)
    with EpisodeReader(old) as reader:
        assert reader.read(reader.list()[0].episode_id).step == 1
        assert reader.count() == 3
