"""Machine checks of `astune doctor`: processor, accelerator, memory, disks, ports, the sandbox."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from astune.backbone.findings import Finding
from astune.config import AstuneConfig
from astune.config.cache import cache_dir
from astune.config.schema import SandboxConfig
from astune.launcher.companion import LOGVIEW_PORT
from astune.launcher.health import describe_listener, port_is_free
from astune.sandbox import Sandbox
from astune.schema import SandboxError

MEMORY_GB = 2.6
"""The estimate for the demo in float32, in GiB."""
DISK_GB = 5.0
"""3 GB of the demo's file with all weights, while it writes a checkpoint beside two others, and room for episodes."""
PORTS = {8080: "environment service", LOGVIEW_PORT: "log viewer"}
_NVIDIA_SMI_S = 20.0


def cpu() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = f"{usable} of {os.cpu_count()} cores usable"
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return Finding("CPU", "ok", f"{platform.machine()}, {cores}")
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    flags = set(re.findall(r"\w+", " ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.M))))
    fast = [name for name in ("avx512_bf16", "amx_bf16", "bf16") if name in flags]
    arithmetic = f"bfloat16 by {', '.join(fast)}" if fast else "no bfloat16 instructions: training in float32"
    return Finding(
        "CPU", "ok" if fast else "note", f"{model[1] if model else platform.machine()}, {cores}, {arithmetic}"
    )


def gpu() -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        if sys.platform == "darwin" and platform.machine() == "arm64":
            return Finding("GPU", "ok", "Apple's, through mps")
        return Finding("GPU", "note", "none found; the CPU is used")
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        asked = subprocess.run(query, capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as cause:
        return Finding("GPU", "problem", f"nvidia-smi does not answer: {cause}", "sudo modprobe nvidia")
    names = [line.strip() for line in asked.stdout.splitlines() if line.strip()]
    if asked.returncode != 0 or not names:
        why = (asked.stdout + asked.stderr).strip().splitlines()
        return Finding("GPU", "problem", f"nvidia-smi: {why[0] if why else 'no GPU'}", "sudo modprobe nvidia")
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    if torch.endswith("+cpu"):
        detail = f"{names[0]}, but torch {torch} is built for the CPU alone"
        return Finding("GPU", "problem", detail, "pip install --force-reinstall torch")
    return Finding("GPU", "ok", "; ".join(names))


def memory() -> Finding:
    found = psutil.virtual_memory()
    available, total = found.available, found.total
    limit, used = _control_group_memory()
    if limit is not None and limit < total:
        total, available = limit, min(available, max(0, limit - used))
    detail = f"{available / 2**30:.1f} of {total / 2**30:.1f} GiB available"
    if available < MEMORY_GB * 2**30:
        fix = "end other programs, or --set trainer.tokens_per_microbatch=1024 --set engine.kv_cache_gb=0.5"
        return Finding("memory", "problem", f"{detail}; the demo needs {MEMORY_GB:g}", fix)
    return Finding("memory", "ok", detail)


def _control_group_memory() -> tuple[int | None, int]:
    """A container's limit and what it uses of it, in bytes."""
    folder = Path("/sys/fs/cgroup")
    try:
        return int((folder / "memory.max").read_text()), int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # no limit, which is written `max`, or another system
        return None, 0


def disks(config: AstuneConfig) -> Iterator[Finding]:
    for what, folder, fix in (
        ("disk of runs", config.record_dir, "--set record_dir=/a/folder/with/space"),
        ("disk of models", cache_dir(), "export ASTUNE_CACHE=/a/folder/with/space"),
    ):
        there = folder.resolve()
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        detail = f"{free / 2**30:.0f} GiB free for {folder}"
        if not os.access(there, os.W_OK):
            yield Finding(what, "problem", f"{folder} cannot be written", fix)
        elif free < DISK_GB * 2**30:
            yield Finding(what, "problem", f"{detail}, under {DISK_GB:g}", fix)
        else:
            yield Finding(what, "ok", detail)


def ports() -> Iterator[Finding]:
    for port, what in PORTS.items():
        if port_is_free(port):
            yield Finding(f"port {port}", "ok", f"free, for the {what}")
        else:
            yield Finding(f"port {port}", "note", f"the {what}'s, taken by {describe_listener(port)}")


def sandbox(config: SandboxConfig) -> Finding:
    """Return the sandbox backend of a run: the first one that runs a line of code here."""
    try:
        backend = asyncio.run(_sandbox_backend(config))
    except SandboxError as failure:
        return Finding("sandbox", "problem" if sys.platform == "linux" else "note", failure.message, failure.hint)
    if backend == "rlimits":
        return Finding("sandbox", "note", "none: code runs without isolation, which sandbox.allow_unsafe allows")
    return Finding("sandbox", "ok", f"{backend}: a line of code ran in it")


async def _sandbox_backend(config: SandboxConfig) -> str:
    async with Sandbox.open(config) as opened:
        return opened.backend
