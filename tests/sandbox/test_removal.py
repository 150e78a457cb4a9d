"""Folders that untrusted code has filled, and their removal: it decides no verdict and leaves nothing behind."""

from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path

import pytest

from astune.sandbox.inside.filling import unlinked_bytes
from astune.sandbox.inside.removal import remove_all

NESTS = """
import os
import time
for level in range(3000):
    os.mkdir("deep" * 10)
    os.chdir("deep" * 10)
    if level % 500 == 0:
        open("file", "w").close()
        os.symlink("/etc", "link")
os.chmod(".", 0)
print("nested")
time.sleep(0.5)  # until somebody looks
"""


@pytest.mark.slow
def test_a_deep_folder_with_closed_folders_and_links_is_removed_and_nothing_else(tmp_path: Path):
    kept = tmp_path / "kept" / "file"
    kept.parent.mkdir()
    kept.touch()
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    here = os.getcwd()
    try:
        os.chdir(doomed)
        os.symlink(kept.parent, "link")
        for _ in range(3000):
            os.mkdir("n" * 60)
            os.chdir("n" * 60)
        os.symlink(kept, "link to a file")
        os.chmod(".", 0)
    finally:
        os.chdir(here)
    for closed in ("closed", "closed/inside"):
        (doomed / closed).mkdir()
    (doomed / "closed").chmod(0)
    assert remove_all(doomed)
    assert not doomed.exists()
    assert kept.exists()
    assert remove_all(doomed), "what is not there is gone"


@pytest.mark.slow
def test_a_call_that_nests_folders_gets_its_result_and_so_does_the_next_one(any_box):
    is_bounded = any_box.backend in ("zygote", "bubblewrap")
    for _ in range(2):
        result = any_box.run(NESTS if is_bounded else NESTS.replace("sleep(0.5)", "sleep(15)"))
        if is_bounded:
            assert (result.ended_by, result.stdout) == ("exit", "nested\n"), result.stderr
        else:  # no file system of its own bounds what lies there, and nothing so deep can be counted
            assert result.ended_by == "memory"
    assert any_box.run("print(1)").stdout == "1\n"


@pytest.mark.parametrize("keep", ["kept.append(file)", "kept.append(mmap.mmap(file.fileno(), SIZE)); file.close()"])
def test_files_without_a_name_count_too_where_no_file_system_bounds_them(box, keep: str):
    if box.backend != "zygote-landlock":
        pytest.skip("behind walls the scratch folder is a file system of its own size")
    result = box.run(
        f"""
import mmap, os, time
SIZE, kept = 64 << 20, []
for number in range(12):
    file = open(f"{{number}}", "w+b")
    os.posix_fallocate(file.fileno(), 0, SIZE)
    os.unlink(file.name)
    {keep}
time.sleep(10)
print("kept 768 MiB")
"""
    )
    assert (result.ended_by, result.stdout) == ("memory", "")


def test_bytes_of_files_without_a_name_are_counted_once(tmp_path: Path):
    gc.collect()
    others = unlinked_bytes(os.getpid(), str(tmp_path))  # what earlier tests left open in this process
    with open(tmp_path / "open", "w+b") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        with mmap.mmap(file.fileno(), 1 << 20) as mapped:
            os.unlink(file.name)
            assert unlinked_bytes(os.getpid(), str(tmp_path)) - others == 1 << 20
            file.close()
            assert unlinked_bytes(os.getpid(), str(tmp_path)) - others == 1 << 20
            assert mapped[0] == 0
    assert unlinked_bytes(os.getpid(), str(tmp_path)) == others
