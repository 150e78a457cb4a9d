"""Advice if no sandbox works: the command that fixes this machine, as far as its kernel's settings reveal it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from astune.sandbox.inside import landlock

_SETTINGS = Path("/proc/sys")
_SECURITY_MODULES = Path("/sys/kernel/security/lsm")
_SECCOMP = "kernel/seccomp/actions_avail"
_AGAINST_NAMESPACES = {
    "kernel/unprivileged_userns_clone": ("0", "1"),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user/max_user_namespaces": ("0", "65536"),
}
"""Settings that keep users from making namespaces: the value that does, and one that does not."""


def advice(hints: Iterable[str]) -> str:
    """Return the command to run first, and the fallback without isolation; `hints` are messages of the failed
    backends."""
    line = next(iter([*_of_the_kernel(), *hints, *_of_landlock()]), "use a machine whose kernel you can configure")
    return f"{line}; or run code without isolation: --set sandbox.allow_unsafe=true"


def advice_on_namespaces() -> str:
    """Return the command that lets this user make namespaces."""
    allowed = "allow it namespaces, as `docker run --security-opt seccomp=unconfined --cap-add SYS_ADMIN` does"
    return next(iter(_of_the_kernel()), f"where this is a container, {allowed}")


def _of_the_kernel() -> Iterable[str]:
    if sys.platform != "linux":
        yield "code is confined on Linux alone, as in a virtual machine"
    elif not (_SETTINGS / _SECCOMP).exists():
        yield "boot a kernel with CONFIG_SECCOMP_FILTER=y, without which nothing is confined"
    for name, (closed, opened) in _AGAINST_NAMESPACES.items():
        setting = _SETTINGS / name
        if setting.exists() and setting.read_text().strip() == closed:
            yield f"sudo sysctl -w {name.replace('/', '.')}={opened}"


def _of_landlock() -> Iterable[str]:
    try:
        landlock.version()
    except OSError:
        modules = _SECURITY_MODULES.read_text().strip() if _SECURITY_MODULES.exists() else "..."
        yield f"boot Linux 5.13 or later with lsm=landlock,{modules} on the kernel's command line"
