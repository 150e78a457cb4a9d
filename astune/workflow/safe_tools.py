"""Tools for agents that would do harm if they were not held back: running Python that the model wrote.

`execute_python_code` is a tool function of AgentScope, with the name, arguments and result of AgentScope's own, which
isolates nothing. `run_python_code` is the same for any other agent. Neither keeps anything between calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from astune.config.schema import SandboxConfig
from astune.sandbox import SandboxResult, shared_sandbox
from astune.schema import SandboxError, WorkflowError

if TYPE_CHECKING:
    from agentscope.tool import ToolResponse

_LONGEST_S = 300.0
"""The tool's own default, as in AgentScope; `sandbox.timeout_s` is what holds."""


class ToolUse:
    """The tools of one episode: with which limits, and whether one of them failed."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self.failure: SandboxError | None = None


_use: ContextVar[ToolUse | None] = ContextVar("astune_tool_use", default=None)


@contextmanager
def tools_of_episode(config: SandboxConfig) -> Iterator[ToolUse]:
    """Tools called inside, in this task and in threads that it starts, have these limits and report failures here:
    agent frameworks show a tool's exception to the model and go on."""
    use = ToolUse(config)
    before = _use.set(use)
    try:
        yield use
    finally:
        _use.reset(before)


async def execute_python_code(code: str, timeout: float = _LONGEST_S, **_: Any) -> ToolResponse:
    """Execute the given python code in a sandbox and capture the return code, standard output and error. Note you must
    `print` the output to get the result, and that files and variables are gone after the execution.

    Args:
        code (`str`):
            The Python code to be executed.
        timeout (`float`, defaults to `300`):
            The maximum time (in seconds) allowed for the code to run.

    Returns:
        `ToolResponse`:
            The response containing the return code, standard output, and standard error of the executed code.
    """
    try:
        from agentscope.message import TextBlock
        from agentscope.tool import ToolResponse
    except ImportError as cause:
        raise WorkflowError(
            f"execute_python_code is a tool of AgentScope 1.x, which cannot be imported: {cause}",
            hint="pip install 'astune[agentscope]', or use run_python_code, which needs no framework",
        ) from cause
    text = await run_python_code(code, timeout)
    return ToolResponse(content=[TextBlock(type="text", text=text)])


async def run_python_code(code: str, timeout: float = _LONGEST_S) -> str:
    """Run Python in the sandbox; gives `<returncode>..</returncode><stdout>..</stdout><stderr>..</stderr>`.

    Args:
        timeout: seconds; where `sandbox.timeout_s` is less, that holds.

    Raises:
        SandboxError: the sandbox failed. What the code does wrong is in the text.
    """
    use = _use.get() or ToolUse(SandboxConfig())
    try:
        sandbox = await shared_sandbox(use.config)
        result = await sandbox.run(code, timeout_s=timeout)
    except SandboxError as failure:
        use.failure = use.failure or failure
        raise
    return _as_text(result, min(timeout, use.config.timeout_s), use.config)


def _as_text(result: SandboxResult, timeout_s: float, config: SandboxConfig) -> str:
    reasons = {
        "timeout": f"TimeoutError: The code execution exceeded the timeout of {timeout_s:g} seconds.",
        "memory": f"MemoryError: The code execution exceeded the memory limit of {config.memory_mb} MB.",
        "output": f"OutputError: The code printed more than {config.output_kb} KB and was stopped.",
    }
    reason = reasons.get(result.ended_by)
    stderr = result.stderr if reason is None else "\n".join(filter(None, [result.stderr, reason]))
    returncode = result.returncode if reason is None else -1
    return f"<returncode>{returncode}</returncode><stdout>{result.stdout}</stdout><stderr>{stderr}</stderr>"
