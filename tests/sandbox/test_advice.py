"""Where no sandbox works: the line that fixes it, by what the kernel says of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astune.sandbox import Sandbox
from astune.schema import SandboxError

SECCOMP = {"kernel/seccomp/actions_avail": "allow log"}
OWN_WAY = "; or run code without isolation: --set sandbox.allow_unsafe=true"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "boot a kernel with CONFIG_SECCOMP_FILTER=y, without which nothing is confined"),
        (SECCOMP | {"user/max_user_namespaces": "0"}, "sudo sysctl -w user.max_user_namespaces=65536"),
        (
            SECCOMP | {"kernel/apparmor_restrict_unprivileged_userns": "1", "user/max_user_namespaces": "9"},
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (SECCOMP | {"kernel/apparmor_restrict_unprivileged_userns": "0"}, "sudo apt install bubblewrap"),
    ],
)
def test_the_line_follows_from_the_kernels_settings(settings, line, monkeypatch, tmp_path: Path):
    for name, value in settings.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    exists, read = Path.exists, Path.read_text

    def stood_for(path: Path) -> Path:
        return tmp_path / path.relative_to("/proc/sys") if path.is_relative_to("/proc/sys") else path

    monkeypatch.setattr(Path, "exists", lambda path, **given: exists(stood_for(path), **given))
    monkeypatch.setattr(Path, "read_text", lambda path, *given, **named: read(stood_for(path), *given, **named))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="bubblewrap: bwrap is not installed") as refused:
        asyncio.run(Sandbox.start(backend="bubblewrap"))
    assert refused.value.hint == line + OWN_WAY
