"""Settings of the sandbox for model-written code."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astune.config.strict import StrictModel


class SandboxLimits(StrictModel):
    """Resource limits of one call of model-written code."""

    timeout_s: float = Field(default=30.0, gt=0)
    """Limit in seconds, of wall-clock time and of each process's CPU time. Most code takes milliseconds, and the
    episode waits for it."""
    memory_mb: int = Field(default=512, ge=64)
    """Memory in MiB: the address space of each process, the resident memory of all together, and the files they write.
    Plain Python fits into 64, numpy into 128, pandas into 256."""
    output_kb: int = Field(default=64, ge=1)
    """KiB of both output streams together, after which the code is stopped; a model's context is the smaller limit."""
    processes: int = Field(default=16, ge=1)
    """Maximum processes and threads, the first included: enough for thread pools, too few for a fork bomb."""


HeldTool = Literal[
    "execute_python_code",
    "execute_shell_command",
    "write_text_file",
    "insert_text_file",
    "Bash",
    "PowerShell",
    "Write",
    "Edit",
]
"""An AgentScope tool that runs code or changes files with the user's rights; those with a capital are of 2.x."""


class SandboxConfig(SandboxLimits):
    """Execution of model-written code (`execute_python_code`, `execute_shell_command`)."""

    allow_unsafe: bool = False
    """Run code without isolation if no safe method works on this machine: it can then read and change whatever you can.
    Only for code that you would run yourself."""
    unconfined_tools: tuple[HeldTool, ...] = ()
    """AgentScope tools that run unconfined during episodes, on your files and with your rights. Others run in the
    sandbox (`execute_*`, `Bash`), or report to the model that they are unavailable (`*_text_file`, `PowerShell`,
    `Write`, `Edit`)."""
