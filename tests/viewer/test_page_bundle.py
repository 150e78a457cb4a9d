"""The committed bundle: what the server and exports rely on, how big it is, and that it is what its sources build."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UI = ROOT / "ui"
STATIC = ROOT / "astune" / "viewer" / "static"
MOST_BYTES = 200_000


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with the packages that their lock names, and `astune/viewer/static` empty beside them."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("THE PAGE'S SOURCES ARE NOT TESTED: no npm; on Debian: scripts/install_debian.sh")
    folder = tmp_path_factory.mktemp("bundle") / "ui"
    shutil.copytree(UI, folder, ignore=shutil.ignore_patterns("node_modules"))
    done = subprocess.run(
        [npm, "ci", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = f"npm cannot fetch the packages: {done.stderr[-300:]}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return folder


def test_the_page_has_what_the_server_and_exports_put_something_in_place_of():
    page = (STATIC / "index.html").read_text()
    for tag in (
        '<link rel="icon" href="/static/icon.svg">',
        '<link rel="stylesheet" href="/static/app.css">',
        '<script defer src="/static/app.js"></script>',
    ):
        assert page.count(tag) == 1
    assert not re.search(r"\son\w+=|style=|<script>", page), "the policy allows nothing inline"


def test_the_bundle_is_small_and_takes_no_text_for_markup():
    assert sum(file.stat().st_size for file in STATIC.iterdir()) < MOST_BYTES
    for file in (UI / "src").rglob("*.ts*"):
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", file.read_text()), file


@pytest.mark.slow
def test_a_rebuild_is_byte_for_byte_what_is_committed(sources):
    built = subprocess.run(["npm", "run", "build"], cwd=sources, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    fresh = sources.parent / "astune" / "viewer" / "static"
    names = sorted(file.name for file in STATIC.iterdir())
    assert sorted(file.name for file in fresh.iterdir()) == names
    same, differing, _ = filecmp.cmpfiles(fresh, STATIC, names, shallow=False)
    assert sorted(same) == names, f"{differing} differ: run `make ui` and commit what it builds"


@pytest.mark.slow
def test_the_pages_own_tests_pass(sources):
    done = subprocess.run(["npm", "test"], cwd=sources, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
