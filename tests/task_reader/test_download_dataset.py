"""scripts/download_dataset.py as a user starts it: a process of its own, against a real HTTP server."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from dataset_making import write_files
from hub_mirror import mirror
from waiting import eventually

from astune.config import load_config
from astune.config.schema import HuggingFaceReaderConfig, TaskReaderConfig
from astune.schema import TaskReaderError
from astune.task_reader import open_task_reader
from astune.task_reader.task_reader_base import TaskReaderHuggingFace

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "download_dataset.py"
FILES = {"README.md": b"# rows\n", "data/train.jsonl": b'{"question": "2+2?", "answer": "4"}\n' * 40_000}


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), f"--path={folder}", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    process = start(folder, *words, **environment)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".download.lock"
    }


@pytest.mark.slow
def test_gsm8k_is_downloaded_from_a_mirror_once(gsm8k_files, tmp_path):
    with mirror(openai__gsm8k=gsm8k_files) as hub:
        status, out, err = run(tmp_path, "--target=openai/gsm8k", HF_ENDPOINT=hub.address)
        assert (status, err) == (0, "")
        assert content_of(tmp_path / "openai" / "gsm8k") == gsm8k_files
        table = dict(re.findall(r"^  to fetch +(\S+ [kM]?B)  (\S+)$", out, re.M))
        assert set(table.values()) == set(gsm8k_files)
        assert "4 files fetched" in out
        counts = re.findall(r"^subset (\S+), split (\S+) +━+ (\S+) rows *$", out, re.M)
        assert counts == [("main", "train", "7,473"), ("main", "test", "1,319"), ("socratic", "train", "10")]
        for title in ("main, train", "main, test", "socratic, train"):
            assert f"\n{title}: the first rows" in out
        assert out.count("│ Natalia sold clips to 48 of her friends") == 2
        assert out.count("│ Janet’s ducks lay 16 eggs per day.") == 1
        assert max(map(len, out.partition("\nsubset ")[2].partition("\nread it")[0].splitlines())) <= 100
        assert f"dataset_path: {tmp_path}/openai/gsm8k (or openai/gsm8k)" in out.replace("\n", "")

        asked = len(hub.downloads())
        status, out, _ = run(tmp_path, "--target=openai/gsm8k", HF_ENDPOINT=hub.address)
        assert (status, len(hub.downloads())) == (0, asked)
        assert len(re.findall("^  complete  ", out, re.M)) == 4
        assert "0 files fetched (0 B), 4 were there" in out


@pytest.mark.slow
@pytest.mark.parametrize(("end", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_download_that_is_ended_goes_on_where_it_was(tmp_path, end, status):
    folder = tmp_path / "a" / "b"
    write_files(folder, {"README.md": FILES["README.md"]})
    part = folder / "data" / "train.jsonl.part"
    with mirror(a__b=FILES) as hub:
        hub.break_after, hub.hold = [500_000], threading.Event()
        first = start(tmp_path, "--target=a/b", HF_ENDPOINT=hub.address)
        eventually(lambda: part.is_file() and part.stat().st_size > 400_000, "the first bytes")
        first.send_signal(end)
        _, err = first.communicate(timeout=20)
        hub.hold.set()
        assert first.returncode == status
        assert err == ("interrupted; the same command resumes where it stopped\n" if end == signal.SIGINT else "")
        begun = part.stat().st_size

        again, out, _ = run(tmp_path, "--target=a/b", HF_ENDPOINT=hub.address)
        assert again == 0
        assert re.search(r"^  complete +7 B  README\.md$", out, re.M)
        part_there = f"{begun / len(FILES['data/train.jsonl']):.0%} there"
        assert re.search(rf"^  {part_there} +1\.4 MB  data/train\.jsonl$", out, re.M)
        assert hub.downloads()[-1].endswith(f"bytes={begun}-")
        assert content_of(folder) == FILES


@pytest.mark.slow
def test_two_data_sets_in_one_folder_never_touch_each_others_files(tmp_path):
    rows = {"a__b": b'{"question": "of a"}\n', "c__d": b'{"question": "of c"}\n'}
    with mirror(**{name: {"test.jsonl": row} for name, row in rows.items()}) as hub:
        for target in ("a/b", "c/d"):
            status, out, _ = run(tmp_path / "data", f"--target={target}", HF_ENDPOINT=hub.address)
            assert (status, re.findall(r"split (\S+) +━+ (\d) rows", out)) == (0, [("test", "1")])
    assert content_of(tmp_path / "data") == {"a/b/test.jsonl": rows["a__b"], "c/d/test.jsonl": rows["c__d"]}
    assert run(tmp_path, "--target=../c/d") == (
        1,
        "",
        "error: '../c/d' is no hub id; a hub id has the form owner/name, as in openai/gsm8k\n",
    )


@pytest.mark.slow
def test_what_was_downloaded_is_read_by_its_id_and_an_older_file_is_named(tmp_path):
    with mirror(a__b={"train.jsonl": b'{"question": "new"}\n'}) as hub:
        write_files(tmp_path / "a" / "b", {"old.jsonl": b'{"question": "old"}\n'})
        status, out, _ = run(tmp_path, "--target=a/b", HF_ENDPOINT=hub.address)
        assert (status, re.findall(r"^  not on hub +20 B  (\S+); delete it", out, re.M)) == (0, ["old.jsonl"])
    for path in ("a/b", str(tmp_path / "a" / "b")):
        data = HuggingFaceReaderConfig(dataset_path=path)
        [task] = TaskReaderHuggingFace(TaskReaderConfig(type="huggingface", huggingface=data)).read().training
        assert task.main_query == "new"
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(TaskReaderError, match="a/b is neither at"):
        TaskReaderHuggingFace(TaskReaderConfig(huggingface=HuggingFaceReaderConfig(dataset_path="a/b"))).read()


@pytest.mark.slow
def test_the_sources_are_three(tmp_path):
    with mirror(a__b=FILES) as hub:
        for number, words in enumerate(
            (
                ("--source=mirror", f"--endpoint={hub.address}"),
                ("--source=hf", f"--endpoint={hub.address}/"),
                ("--source=modelscope", f"--endpoint={hub.address}"),
            )
        ):
            status, _, err = run(tmp_path / str(number), "--target=a/b", *words)
            assert (status, err) == (0, "")
            assert content_of(tmp_path / str(number) / "a" / "b") == FILES
        assert any("/api/v1/datasets/a/b/repo/tree" in line for line in hub.requests)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--source=mirror"], "error: no mirror is named; add --endpoint=https://..., or set HF_ENDPOINT"),
        (["--endpoint=http://127.0.0.1:9"], "error: the hub at http://127.0.0.1:9 cannot be reached: "),
        (["--endpoint=http://no-such-host.invalid"], "error: the hub at http://no-such-host.invalid cannot be"),
        (
            ["--source=modelscope", "--endpoint=http://127.0.0.1:9"],
            "name a mirror: MODELSCOPE_ENDPOINT=https://...",
        ),
    ],
)
def test_offline_is_one_line_within_seconds(tmp_path, monkeypatch, words, complaint):
    monkeypatch.delenv("HF_ENDPOINT")
    started = time.monotonic()
    status, out, err = run(tmp_path / "data", "--target=openai/gsm8k", *words)
    assert time.monotonic() - started < 10
    assert (status, out) == (1, "")
    assert complaint in err
    assert err.count("\n") == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_an_unknown_data_set_is_one_line(tmp_path):
    with mirror(a__b=FILES) as hub:
        status, out, err = run(tmp_path, "--target=a/c", HF_ENDPOINT=hub.address)
    assert (status, out) == (1, "")
    assert re.fullmatch(r"error: http\S+ knows no data set 'a/c' \(status 401\); check the spelling .*\n", err)


@pytest.mark.slow
def test_a_data_set_without_rows_is_downloaded_all_the_same(tmp_path):
    with mirror(a__b={"picture.png": b"\x89PNG"}) as hub:
        status, out, _ = run(tmp_path, "--target=a/b", HF_ENDPOINT=hub.address)
    assert status == 0
    assert "no rows are shown" in out
    assert content_of(tmp_path / "a" / "b") == {"picture.png": b"\x89PNG"}


def commands_of_the_page() -> list[str]:
    page = (ROOT / "docs" / "en" / "tasks.md").read_text(encoding="utf-8")
    return re.findall(r"^((?:[A-Z_]+=\S+ )?python scripts/download_dataset\.py .+)$", page, re.M)


@pytest.mark.slow
def test_the_commands_of_the_page_download_what_its_configuration_reads(gsm8k_files, tmp_path, monkeypatch):
    assert len(commands_of_the_page()) == 3
    monkeypatch.chdir(tmp_path)
    with mirror(openai__gsm8k=gsm8k_files, **{"AI-ModelScope__gsm8k": gsm8k_files}) as hub:
        for command in commands_of_the_page():
            words = [word for word in shlex.split(command) if not word.startswith("HF_ENDPOINT=")]
            [path, target] = [
                next(word.partition("=")[2] for word in words if word.startswith(option))
                for option in ("--path=", "--target=")
            ]
            options = [word for word in words[2:] if not word.startswith("--path=")]
            shutil.rmtree(Path(path) / target, ignore_errors=True)
            status, _, err = run(Path(path), *options, HF_ENDPOINT=hub.address, MODELSCOPE_ENDPOINT=hub.address)
            assert (status, err) == (0, ""), command
            assert content_of(tmp_path / path / target) == gsm8k_files
    shown = re.search(r"# gsm8k\.yaml\n(.*?)```", (ROOT / "docs" / "en" / "tasks.md").read_text(), re.S)
    assert shown is not None
    (tmp_path / "gsm8k.yaml").write_text(shown[1])
    splits = open_task_reader(load_config(tmp_path / "gsm8k.yaml").task_reader).read()
    assert (len(splits.training), len(splits.validation)) == (7473, 1319)
