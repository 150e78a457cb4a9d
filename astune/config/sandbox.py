"""Running code that a model wrote."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astune.config.strict import StrictModel


class SandboxLimits(StrictModel):
    """What one call of model-written code may use."""

    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds, of the clock and of each process's CPU. Most code takes milliseconds; an episode waits for it."""
    memory_mb: int = Field(default=512, ge=64)
    """Memory in MiB: the addresses of each process, what all of them really use together, and the files they write.
    Plain Python fits into 64, numpy into 128, pandas into 256."""
    output_kb: int = Field(default=64, ge=1)
    """KiB of both output streams together, after which the code is stopped: a model's context is the smaller limit."""
    processes: int = Field(default=16, ge=1)
    """Processes and threads at once, the first one counted: enough for thread pools, too few for a fork bomb."""


HeldTool = Literal["execute_python_code", "execute_shell_command", "write_text_file", "insert_text_file"]
"""A tool of AgentScope's own that runs code or changes files with the rights of whoever runs it."""


class SandboxConfig(SandboxLimits):
    """Running code that a model wrote (`execute_python_code`, `execute_shell_command`)."""

    allow_unsafe: bool = False
    """Run code without any isolation where no safe way works on this machine: it may then read and change whatever
    you may. Only for code that you would run yourself."""
    unconfined_tools: tuple[HeldTool, ...] = ()
    """Tools of AgentScope's own that do during episodes what they always do, on your files and with your rights. Others
    run in the sandbox (`execute_*`), or tell the model that they are not available (`*_text_file`)."""
