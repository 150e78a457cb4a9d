"""The script that installs Debian's packages, as far as it changes nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "install_debian.sh"


def _run(path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", str(SCRIPT), "--dry-run"], env={"PATH": path}, capture_output=True, text=True, check=False
    )


def _folder_of_tools(folder: Path, *names: str) -> str:
    for name, text in (("apt-get", "exit 9"), ("id", "echo 1000"), ("dirname", "exit 0")):
        if name in names:
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)
    return str(folder)


def test_a_dry_run_says_what_it_would_do_and_does_nothing(tmp_path):
    done = _run(_folder_of_tools(tmp_path, "apt-get", "id"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "install_debian: sudo apt-get update",
        "install_debian: sudo apt-get install --yes --no-install-recommends bubblewrap chromium python3-doc",
    ]


def test_another_system_is_told_what_to_install(tmp_path):
    done = _run(_folder_of_tools(tmp_path, "id"))
    assert done.returncode == 1
    assert (
        done.stderr
        == "install_debian: this system has no apt-get; install with its own tool: bubblewrap chromium python3-doc\n"
    )
