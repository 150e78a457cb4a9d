"""Where no sandbox works: the line that mends it, by what the kernel says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from astune.sandbox import _advice
from astune.sandbox._advice import advice

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
        (SECCOMP | {"kernel/apparmor_restrict_unprivileged_userns": "0"}, "chmod o+x /root"),
    ],
)
def test_the_line_follows_from_the_kernels_settings(settings, line, monkeypatch, tmp_path: Path):
    for name, value in settings.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setattr(_advice, "_SETTINGS", tmp_path)
    monkeypatch.setattr(_advice.sys, "platform", "linux")
    assert advice(["chmod o+x /root", "sudo apt install bubblewrap"]) == line + OWN_WAY
