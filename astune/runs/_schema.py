"""Tables of an episode store, and migration of stores of an older version.

`episodes.py` documents the columns. Version 1 had no `n_branches`, no `agents`, and neither of the tables beside
`episodes`.
"""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import zstandard

from astune.runs._files import Stamp
from astune.runs._limits import QueryLimit
from astune.runs._lock import RunLock
from astune.runs.texts import folded, forest_text
from astune.runs.wire import unpack
from astune.schema import MessageNode, RunStoreError

SCHEMA_VERSION = 2
APPLICATION_ID = 0x41535452
BUSY_TIMEOUT_S = 30.0
TEXT_LEVEL = 1
"""zstd level for texts: they are written once and read at every search, and higher levels are slower to read."""

_EPISODES = """
    seq INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL UNIQUE,
    split TEXT NOT NULL,
    step INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    repeat INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    status TEXT NOT NULL,
    reward REAL,
    success INTEGER,
    error_type TEXT,
    error_text TEXT,
    n_tokens INTEGER NOT NULL,
    n_sampled INTEGER NOT NULL,
    n_trained INTEGER NOT NULL,
    n_turns INTEGER NOT NULL,
    n_branches INTEGER NOT NULL,
    agents TEXT NOT NULL,
    seconds REAL,
    created_at REAL NOT NULL,
    advantages TEXT,
    not_trained TEXT,
    blob BLOB NOT NULL
"""
COLUMNS = [line.split()[0] for line in _EPISODES.strip().splitlines()]
_CREATE = f"""
CREATE TABLE episodes ({_EPISODES});
CREATE INDEX episodes_by_step ON episodes (split, step);
CREATE INDEX episodes_by_task ON episodes (split, task_id, step);
CREATE INDEX episodes_by_status ON episodes (status) WHERE status = 'error';
CREATE TABLE texts (seq INTEGER PRIMARY KEY REFERENCES episodes ON DELETE CASCADE, folded BLOB NOT NULL);
CREATE TABLE trainer_logprobs (seq INTEGER PRIMARY KEY REFERENCES episodes ON DELETE CASCADE, logprobs BLOB NOT NULL);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""
_DERIVED = ("n_trained", "n_branches", "agents")
COPIED = ", ".join(column for column in COLUMNS if column not in _DERIVED)
"""Columns of version 1 that are copied unchanged, the blob last; `n_trained` was once counted wrongly."""
_INSERT_COPY = f"INSERT INTO episodes ({COPIED}, {', '.join(_DERIVED)}) VALUES ({', '.join('?' * len(COLUMNS))})"


def connect(path: Path, mode: str = "mode=rwc") -> sqlite3.Connection:
    """Open a connection that any thread may use, one at a time, with explicit transactions."""
    connection = sqlite3.connect(
        f"file:{quote(str(path.resolve()))}?{mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    connection.create_function("folded", 1, _folded, deterministic=True)
    return connection


def _folded(text: Any) -> Any:
    """SQLite's own `lower` changes ASCII letters only."""
    return text.casefold() if isinstance(text, str) else text


def connect_to_read(path: Path) -> tuple[sqlite3.Connection, bool, QueryLimit]:
    """Open a read-only connection; also return whether the file is treated as immutable, and the limit of its queries.

    A reader in WAL mode leaves two files beside the store, or fails in a read-only folder. So a store without a writer
    is read as an immutable file; a caller that keeps such a connection must reopen it when `stamps_of` changes. Damage
    is reported by the first query. Raises RunStoreError if a file beside the store was not made by SQLite.
    """
    _require_files_beside(path)
    connection, never_changes = _connect_to_read(path)
    return connection, never_changes, QueryLimit(connection)


def _connect_to_read(path: Path) -> tuple[sqlite3.Connection, bool]:
    if not _is_at_rest(path.resolve()):
        connection = connect(path, "mode=ro")
        try:
            connection.execute("PRAGMA schema_version")
        except sqlite3.Error as error:
            if primary_code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                return connection, False
            connection.close()
        else:
            return connection, False
    return connect(path, "mode=ro&immutable=1"), True


def _require_files_beside(path: Path) -> None:
    """Refuse links and pipes among the files that SQLite opens by itself, since they could block it for ever."""
    for end in ("-wal", "-shm", "-journal"):
        beside = _beside(path, end)
        try:
            regular = stat.S_ISREG(beside.lstat().st_mode)
        except OSError:
            continue
        if not regular:
            raise RunStoreError(f"{beside} is not a regular file", hint="remove it; it was not made by SQLite")


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary error code; 0 for an error of Python's module itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def stamps_of(path: Path) -> tuple[Stamp, Stamp]:
    """Return stamps of the store and of its write-ahead log."""
    return Stamp.of(path), Stamp.of(_log_of(path))


def _is_at_rest(path: Path) -> bool:
    """Return whether no writer has data beside the file; an empty log may be left by a reader."""
    log = Stamp.of(_log_of(path))
    lock = path.parent.parent / "run.lock"
    if log != Stamp() and (log.size > 0 or not lock.is_file()):
        return False
    return RunLock.holder(lock) is None


def _log_of(path: Path) -> Path:
    return _beside(path, "-wal")


def _beside(path: Path, end: str) -> Path:
    """Return a file that SQLite keeps beside a store, which for a link is beside the file that it leads to."""
    real = path.resolve() if path.is_symlink() else path
    return real.with_name(f"{real.name}{end}")


def create(path: Path) -> None:
    """Create an empty store in a new file."""
    connection = connect(path)
    try:
        connection.executescript(f"PRAGMA journal_mode = WAL; BEGIN IMMEDIATE; {_CREATE} COMMIT;")
    finally:
        connection.close()


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of a store; refuse a database that is not ours, or newer."""
    require_tables(connection, path)
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise RunStoreError(f"{path} is a database, but not an episode store")
    if not 1 <= version <= SCHEMA_VERSION:
        raise RunStoreError(
            f"{path} has schema version {version}, this version of astune reads {SCHEMA_VERSION}",
            hint="upgrade astune, or read the run with the version that wrote it",
        )
    return version


def require_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse views, triggers and virtual tables: querying them runs statements of whoever made the file."""
    made = "type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"
    if connection.execute(f"SELECT 1 FROM main.sqlite_schema WHERE {made} LIMIT 1").fetchone() is not None:
        raise RunStoreError(f"{path} has views or triggers, which no episode store has")


def let_old_read_as_new(connection: sqlite3.Connection) -> None:
    """Add the missing columns to a version 1 store, as null values, for this connection only."""
    connection.execute("CREATE TEMP VIEW episodes AS SELECT *, NULL AS n_branches, NULL AS agents FROM main.episodes")


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate a store of version 1 in one transaction; takes a millisecond or two per episode.

    The table is rewritten: an added column would lie behind the blob, which listing would have to read.
    """
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("ALTER TABLE episodes RENAME TO old")
        for name in ("step", "task", "status"):
            connection.execute(f"DROP INDEX episodes_by_{name}")
        for statement in _CREATE.split(";"):
            connection.execute(statement)
        copy = RowCopy(connection)
        rows = connection.execute(f"SELECT {COPIED} FROM old ORDER BY seq")
        for values in rows:
            copy.add(values)
        connection.execute("DROP TABLE old")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("PRAGMA foreign_keys = ON")


class RowCopy:
    """Copies rows of any version into an empty store, and derives missing values from the episode itself."""

    def __init__(self, into: sqlite3.Connection) -> None:
        self._into = into
        self._zstd = zstandard.ZstdCompressor(level=TEXT_LEVEL, write_checksum=True)

    def add(self, values: Sequence[Any]) -> None:
        """Add a row, given as the values of the columns `COPIED` in order. Raises RunStoreError if the episode itself
        is damaged; nothing is inserted."""
        episode = unpack(values[-1])
        forest = episode.forest
        text = self._zstd.compress(folded(forest_text(forest)))
        self._into.execute(_INSERT_COPY, (*values, episode.n_trained, len(forest.leaves()), agents_of(forest.nodes)))
        self._into.execute("INSERT INTO texts VALUES (?, ?)", (values[0], text))


def agents_of(nodes: Sequence[MessageNode]) -> str:
    """Return the agents that called the model, as a JSON list in the order of their first answers."""
    return orjson.dumps(list(dict.fromkeys(column_text(node.agent) for node in nodes if node.sampled))).decode()


def column_text(text: str) -> str:
    """Return text as a column can hold it: SQLite accepts no lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()
