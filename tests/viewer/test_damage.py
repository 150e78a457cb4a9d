"""Runs that are half there: they open as far as they go, and say what is missing."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from viewer_stage import branching_episode, get, make_episode, serving, write_run, writing

from astune.runs import RunDirectory, resolve_run
from astune.schema import RunStoreError

N = 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of some episodes, with several pages of every kind in its database."""
    episodes = [make_episode(number, task=f"task-{number // 4}", answer=f"word-{number} " * 200) for number in range(N)]
    return write_run(tmp_path_factory.mktemp("whole"), episodes)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    shutil.copytree(whole, tmp_path / whole.name)
    with sqlite3.connect(tmp_path / whole.name / "rollout" / "episodes.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return tmp_path / whole.name


@pytest.fixture
def seen_by_others(run: Path) -> Iterator[Path]:
    """A copy that other users may read. It lies outside of pytest's folder, which whoever starts pytest closes."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(run, Path(folder) / run.name))
        for open_folder in (copy, copy.parent):
            open_folder.chmod(0o755)
        yield copy


def overwrite(path: Path, start: float, length: int = 4096) -> None:
    """Zeros in place of a part of the file that begins at this fraction of it."""
    with path.open("r+b") as file:
        place = int(path.stat().st_size * start) // 4096 * 4096
        file.seek(place)
        file.write(bytes(length))


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_of_a_damaged_store_what_can_be_read_is_shown(run, start):
    database = run / "rollout" / "episodes.sqlite"
    overwrite(database, start, 3 * 4096)
    before = database.read_bytes()
    with serving(run) as client:
        shown = get(client, "episodes", run="", limit=1000)
        ids = [row["episode_id"] for row in shown["rows"]]
        for episode_id in ids:
            answer = client.get("/api/episode", params={"run": "", "id": episode_id})
            assert answer.status_code in (200, 404), answer.text
        shown = get(client, "episodes", run="", limit=1000)
        assert N // 3 < shown["total"] <= N
        for row in shown["rows"]:
            said = get(client, "episode", run="", id=row["episode_id"])["messages"][1]["content"]
            assert said.startswith(f"word-{4 * int(row['task_id'].removeprefix('task-')) + row['repeat'] % 4} ")
            assert get(client, "tokens", run="", id=row["episode_id"])["length"] == row["n_tokens"]
        found = get(client, "episodes", run="", text="WORD-1 ")
        assert found["total"] <= 1
        problems = get(client, "run", run="")["problems"]
        if shown["total"] < N:
            assert any("could be read" in problem for problem in problems)
    assert database.read_bytes() == before


def test_a_store_that_was_cut_off_is_read_up_to_there(run):
    database = run / "rollout" / "episodes.sqlite"
    data = database.read_bytes()
    database.write_bytes(data[: len(data) // 2 // 4096 * 4096])
    with serving(run) as client:
        total = get(client, "episodes", run="")["total"]
        assert 0 < total < N
        problems = get(client, "run", run="")["problems"]
        assert any(f"{total} of its episodes could be read" in problem for problem in problems)


def test_a_file_that_is_no_store_leaves_the_rest_of_the_run(run):
    (run / "rollout" / "episodes.sqlite").write_bytes(b"not a database at all" * 1000)
    with serving(run) as client:
        answer = get(client, "run", run="")
        assert answer["info"]["status"] == "finished"
        assert answer["steps"] == []
        assert any("cannot be read" in problem for problem in answer["problems"])
        assert [line["step"] for line in get(client, "metrics", run="")[0]["lines"]] == [1]
        assert get(client, "episodes", run="")["total"] == 0


def test_a_store_of_a_newer_version_is_named_with_the_fix(run):
    with sqlite3.connect(run / "rollout" / "episodes.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with serving(run) as client:
        answer = get(client, "run", run="")
        assert any("schema version 99" in problem and "upgrade" in problem for problem in answer["problems"])
        refused = get(client, "episodes", 500, run="")
        assert ("schema version 99" in refused["error"], "upgrade" in refused["hint"]) == (True, True)


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("rollout/vocabulary.json.zst", "tokens are shown as their ids"),
        ("rollout/episodes.sqlite", "there are no episodes"),
        ("config.yaml", "config.yaml is missing"),
        ("metrics.jsonl", None),
        ("rollout", "there are no episodes"),
        ("run.lock", None),
    ],
)
def test_what_is_missing_is_said_and_the_rest_is_shown(run, missing, says):
    path = run / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with serving(run) as client:
        answer = get(client, "run", run="")
        assert [problem for problem in answer["problems"] if says and says in problem] == answer["problems"][:1]
        assert get(client, "runs")[0]["status"] == "finished"
        if "episodes" not in missing and missing != "rollout":
            found = get(client, "episodes", run="", limit=1)["rows"][0]["episode_id"]
            tokens = get(client, "tokens", run="", id=found)
            first = tokens["texts"][str(tokens["ids"][0])]
            assert first == (f"{tokens['ids'][0]} " if "vocabulary" in missing else chr(tokens["ids"][0]))
            assert tokens["length"] > 100


def test_a_damaged_vocabulary_is_said(run):
    (run / "rollout" / "vocabulary.json.zst").write_bytes(b"\x28\xb5\x2f\xfdnonsense")
    with serving(run) as client:
        answer = get(client, "run", run="")
        assert not answer["vocabulary"]
        assert any("vocabulary.json.zst is damaged" in problem for problem in answer["problems"])
        found = get(client, "episodes", run="", limit=1)["rows"][0]["episode_id"]
        assert get(client, "episode", run="", id=found)["messages"][0]["raw"] is None


def test_lines_of_metrics_that_cannot_be_read_are_passed_over_and_named(run):
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(b'{"step": 0}\n' + whole + b"nonsense\n" + whole + whole[:40])
    with serving(run) as client:
        assert [line["step"] for line in get(client, "metrics", run="")[0]["lines"]] == [1, 1]
        problems = get(client, "run", run="")["problems"]
        assert "metrics.jsonl cannot be read in line 1, 3" in problems
        assert "metrics.jsonl ends in the middle of a line" in problems
        assert get(client, "runs")[0]["steps"] == 1


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"experiment": 3}', '{"experiment": "demo", "created_at": 1, "format": 9}']
)
def test_a_run_whose_own_file_is_damaged_is_still_there(run, content):
    (run / "run.json").write_text(content)
    with serving(run.parent) as client:
        (info,) = get(client, "runs")
        assert info["problems"]
        assert info["run"] == run.name
        assert get(client, "episodes", run=run.name)["total"] == N


def test_a_run_without_its_own_file_is_listed_and_opens(whole, run):
    (run / "run.json").unlink()
    shutil.copytree(whole, run.parent / "whole")
    missing = "run.json is missing: when the run began and how it ended is not known"
    for opened, name in ((run.parent, run.name), (run, "")):
        with serving(opened) as client:
            infos = get(client, "runs")
            assert [info["run"] for info in infos] == (["whole", run.name] if name else [""])
            assert (infos[-1]["status"], infos[-1]["episodes"], infos[-1]["steps"]) == ("killed", N, 1)
            assert infos[-1]["problems"] == get(client, "run", run=name)["problems"] == [missing]
            found = get(client, "episodes", run=name, limit=1)["rows"][0]["episode_id"]
            assert get(client, "tokens", run=name, id=found)["length"] > 100
    assert resolve_run(run.parent) == run.parent / "whole"
    with pytest.raises(RunStoreError, match=r"is not a run; .*`astune view` shows what is left"):
        RunDirectory.open(run)


def test_nothing_at_all_is_an_empty_list_that_fills(tmp_path):
    folder = tmp_path / "launcher_record"
    with serving(folder) as client:
        assert get(client, "runs") == []
        assert get(client, "open")["level"] == "record"
        run = write_run(folder, [branching_episode()])
        assert [info["run"] for info in get(client, "runs")] == [f"demo/{run.name}"]
        shutil.rmtree(run)
        assert get(client, "runs") == []
        assert "moved or removed" in get(client, "run", 404, run=f"demo/{run.name}")["hint"]


def test_a_run_that_has_just_begun_has_nothing_yet(tmp_path):
    with writing(tmp_path, vocabulary=None) as run, serving(run.path) as client:
        answer = get(client, "run", run="")
        assert (answer["info"]["status"], answer["info"]["episodes"], answer["info"]["steps"]) == ("running", 0, None)
        assert answer["problems"] == []
        run.config_path.unlink()
        assert get(client, "run", run="")["problems"] == []
        run.finish("finished")
        assert len(get(client, "run", run="")["problems"]) == 2
        assert get(client, "metrics", run="")[0]["lines"] == []
        assert get(client, "episodes", run="", text="anything")["total"] == 0


def test_a_run_that_was_moved_into_place_again_is_read_anew(run, tmp_path):
    with serving(run) as client:
        assert get(client, "episodes", run="")["total"] == N
        other = write_run(tmp_path / "other", [make_episode(answer="fresh")])
        for file in (run / "rollout").iterdir():
            file.unlink()
        for file in (other / "rollout").iterdir():
            shutil.copy(file, run / "rollout" / file.name)
        assert get(client, "episodes", run="", text="fresh")["total"] == 1
        assert RunDirectory.open(run).episodes().count() == 1


def test_a_store_that_is_whole_again_is_read_again(run):
    database = run / "rollout" / "episodes.sqlite"
    whole = database.read_bytes()
    overwrite(database, 0.3, 12 * 4096)
    with serving(run) as client:
        assert get(client, "episodes", run="", text="word")["total"] < N
        database.write_bytes(whole)
        assert get(client, "episodes", run="", text="word")["total"] == N
        assert get(client, "run", run="")["problems"] == []


def test_a_store_that_somebody_holds_is_not_damaged(run, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **more: connect(*given, **(more | {"timeout": 0.05})))
    database = run / "rollout" / "episodes.sqlite"
    holder = sqlite3.connect(database, isolation_level=None)
    holder.executescript("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; UPDATE episodes SET seconds = 1; COMMIT;")
    with serving(run) as client:
        assert "locked" in get(client, "episodes", 500, run="")["error"]
        assert any("locked" in problem for problem in get(client, "run", run="")["problems"])
        holder.close()
        assert get(client, "episodes", run="")["total"] == N
        answer = get(client, "run", run="")
        assert (answer["problems"], answer["info"]["episodes"]) == ([], N)


def test_looking_at_a_run_that_nobody_writes_leaves_nothing_in_it(run):
    def files() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns) for path in run.rglob("*"))

    for left in (run / "rollout").glob("*.sqlite-*"):
        left.unlink()
    before = files()
    with serving(run) as client:
        assert get(client, "episodes", run="", text="word")["total"] == N
        assert files() == before
        with RunDirectory.open(run, write=True) as again, again.open_episodes() as store:
            store.append(make_episode(N, task="fresh"))
            store.flush()
            assert get(client, "episodes", run="")["total"] == N + 1
        assert get(client, "episodes", run="")["total"] == N + 1


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_run_that_one_may_not_write_is_read_all_the_same(seen_by_others):
    """Another user looks, at a run that ended and at one whose writer was killed."""
    for left in (seen_by_others / "rollout").glob("*.sqlite-*"):
        left.unlink()
    ask = """
import os, sys
from astune.config import AstuneConfig, dump
from astune.viewer._api import Api
from astune.viewer._folder import Folder
from astune.viewer._library import Library
from pathlib import Path
dump(AstuneConfig())  # another user cannot import what is in our home
os.setuid(65534)
told = Api(Library(Folder(Path(sys.argv[1])))).run("")
print(told["info"]["episodes"], len(told["steps"]), told["problems"])
"""
    before = sorted(seen_by_others.rglob("*"))
    for log in (b"", b"an unfinished log"):
        if log:
            (seen_by_others / "rollout" / "episodes.sqlite-wal").write_bytes(log)
            before.append(seen_by_others / "rollout" / "episodes.sqlite-wal")
        done = subprocess.run([sys.executable, "-c", ask, seen_by_others], capture_output=True, text=True, check=False)
        assert done.stdout == f"{N} 1 []\n", done.stderr
        assert sorted(seen_by_others.rglob("*")) == sorted(before)


CLOSED = {
    "metrics.jsonl": (0, "metrics.jsonl cannot be read: Permission denied"),
    "run.json": (1, "Permission denied"),
    "config.yaml": (1, "does not name a model"),
    "rollout/vocabulary.json.zst": (1, "Permission denied"),
    "rollout/episodes.sqlite": (1, "cannot be read"),
}
"""By the file that is closed to who looks: how many lines of metrics are shown, and what is said."""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_that_one_may_not_read_is_said_and_the_rest_is_shown_and_followed(seen_by_others):
    """Another user looks, to whom one file after another is closed."""
    ask = """
import json, os, sys
from astune.config import AstuneConfig, dump
from astune.viewer._api import Api
from astune.viewer._events import WatchedRun
from astune.viewer._folder import Folder
from astune.viewer._library import Library
from pathlib import Path
dump(AstuneConfig())  # another user cannot import what is in our home
run, *files = map(Path, sys.argv[1:])
for file in files:
    mode = file.stat().st_mode
    file.chmod(0o600)
    if os.fork():
        assert os.wait()[1] == 0
        file.chmod(mode)
        continue
    os.setuid(65534)
    library = Library(Folder(run))
    api, watched = Api(library), WatchedRun(library.run(""))
    watched.look()
    watched.greeting()
    told = [len(api.runs()), len(api.metrics([""])[0]["lines"]), watched.look(), api.run("")["problems"]]
    print(json.dumps(told), flush=True)
    os._exit(0)
"""
    files = [seen_by_others / name for name in CLOSED]
    done = subprocess.run(
        [sys.executable, "-c", ask, seen_by_others, *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, line in zip(CLOSED, done.stdout.splitlines(), strict=True):
        n_lines, says = CLOSED[name]
        *told, problems = json.loads(line)
        assert told == [1, n_lines, []], name
        assert says in "\n".join(problems), name
