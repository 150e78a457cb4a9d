"""Sandboxed tools for agents that run model-written code.

`execute_python_code` and `execute_shell_command` are tool functions of AgentScope, with the name, arguments and result
of AgentScope's own, which have no isolation. `run_python_code` is for any other agent. The files of an episode's shell
stay from one command to the next; nothing else is kept between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from astune.config.schema import SandboxConfig
from astune.sandbox import SandboxResult, shared_sandbox
from astune.schema import AstuneError, SandboxError, WorkflowError, install_extra
from astune.workflow.workspace import MOST_KB, Workspace

if TYPE_CHECKING:
    from agentscope.tool import ToolResponse

_LONGEST_S = 300.0
"""The tool's own default, as in AgentScope; `sandbox.timeout_s` is what holds."""


class ToolUse:
    """The tools of one episode: their limits, the files of its shell, and whether one of them failed.

    Args:
        maybe_of: candidate episodes if the calling one is unknown; a failure is recorded in each.
    """

    def __init__(self, config: SandboxConfig, maybe_of: Sequence[ToolUse] = ()) -> None:
        self.config = config
        self.workspace = Workspace()
        self.failure: AstuneError | None = None
        self._maybe_of = maybe_of

    def fail(self, failure: AstuneError) -> None:
        for use in self._maybe_of or (self,):
            use.failure = use.failure or failure


_use: ContextVar[ToolUse | None] = ContextVar("astune_tool_use")
"""Tools of the present episode; None outside of episodes, unset if unknown."""
_running: list[ToolUse] = []


@contextmanager
def tools_of_episode(config: SandboxConfig) -> Iterator[ToolUse]:
    """Context in which tools, called in this task and in threads that it starts, have these limits and report failures
    here: agent frameworks pass a tool's exception to the model and continue."""
    use = ToolUse(config)
    before = _use.get(None)
    _use.set(use)
    _running.append(use)
    try:
        yield use
    finally:
        _running.remove(use)
        _use.set(before)


def current_tool_use() -> ToolUse | None:
    """Return the tools of the episode that runs here; None outside of episodes.

    A thread that an agent starts, as with `run_in_executor`, has no such context: while episodes run, it is attributed
    to them.
    """
    try:
        return _use.get()
    except LookupError:
        running = tuple(_running)
        return ToolUse(running[0].config, running) if running else None


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
    return tool_response(await run_python_code(code, timeout))


async def execute_shell_command(command: str, timeout: float = _LONGEST_S, **_: Any) -> ToolResponse:
    """Execute given command in a sandbox and return the return code, standard output and error within
    <returncode></returncode>, <stdout></stdout> and <stderr></stderr> tags. Files in the current folder stay for the
    next command.

    Args:
        command (`str`):
            The shell command to execute.
        timeout (`float`, defaults to `300`):
            The maximum time (in seconds) allowed for the command to run.

    Returns:
        `ToolResponse`:
            The tool response containing the return code, standard output, and standard error of the executed command.
    """
    return tool_response(await run_shell_command(command, timeout))


def tool_response(text: str) -> ToolResponse:
    """Return a tool's result for AgentScope."""
    try:
        from agentscope.message import TextBlock
        from agentscope.tool import ToolResponse
    except ImportError as cause:
        raise WorkflowError(
            f"a tool of AgentScope 1.x was called, which cannot be imported: {cause}",
            hint=f"{install_extra('agentscope')}, or use run_python_code, which needs no framework",
        ) from cause
    return ToolResponse(content=[TextBlock(type="text", text=text)])


async def run_shell_command(command: str, timeout: float = _LONGEST_S) -> str:
    """Run a command in the sandbox as `run_python_code` runs Python, in the folder of the episode's shell."""
    use = current_tool_use() or ToolUse(SandboxConfig())
    if not isinstance(command, str):
        return _as_tags(-1, "", f"TypeError: the command has to be a string, and is {command!r}")
    if (why := _refused(command)) is not None:
        return _as_tags(-1, "", f"ValueError: the command holds {why}, which no shell accepts")
    program, mark = use.workspace.program(command)
    return await _run(use, program, timeout, lambda result: use.workspace.keep(result, mark), more_output_kb=MOST_KB)


async def run_python_code(code: str, timeout: float = _LONGEST_S) -> str:
    """Run Python in the sandbox; returns `<returncode>..</returncode><stdout>..</stdout><stderr>..</stderr>`.

    Args:
        timeout: seconds, at most `sandbox.timeout_s`.

    Arguments come from a model, which may write anything: invalid ones are refused in the text.

    Raises:
        SandboxError: the sandbox failed. Errors of the code are in the text.
    """
    if not isinstance(code, str):
        return _as_tags(-1, "", f"TypeError: the code has to be a string, and is {code!r}")
    return await _run(current_tool_use() or ToolUse(SandboxConfig()), code, timeout, lambda result: result)


async def _run(
    use: ToolUse,
    code: str,
    timeout: float,
    read: Callable[[SandboxResult], SandboxResult],
    *,
    more_output_kb: int = 0,
) -> str:
    """Run Python in the sandbox; `read` gets its result and returns what the model reads."""
    timeout_s = _seconds(timeout)
    if timeout_s is None:
        return _as_tags(-1, "", f"ValueError: the timeout has to be a number of seconds above 0, and is {timeout!r}")
    try:
        sandbox = await shared_sandbox(use.config)
        result = read(await sandbox.run(code, timeout_s=timeout_s, more_output_kb=more_output_kb))
    except SandboxError as failure:
        use.fail(failure)
        raise
    return _as_text(result, min(timeout_s, use.config.timeout_s), use.config)


def _refused(command: str) -> str | None:
    """Return what in a command cannot be handed to a shell; None if nothing."""
    if "\0" in command:
        return "a NUL character"
    try:
        command.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    return None


def _seconds(timeout: object) -> float | None:
    """Parse a timeout as a model writes it, also as a string; None if it is not a number above 0."""
    try:
        seconds = float(timeout)  # pyright: ignore[reportArgumentType] - that is what is found out
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if seconds > 0 else None


def _as_text(result: SandboxResult, timeout_s: float, config: SandboxConfig) -> str:
    reasons = {
        "timeout": f"TimeoutError: The code execution exceeded the timeout of {timeout_s:g} seconds.",
        "memory": f"MemoryError: The code execution exceeded the memory limit of {config.memory_mb} MB.",
        "output": f"OutputError: The code printed more than {config.output_kb} KB and was stopped.",
    }
    reason = reasons.get(result.ended_by)
    stderr = result.stderr if reason is None else "\n".join(filter(None, [result.stderr, reason]))
    returncode = result.returncode if reason is None else -1
    return _as_tags(returncode, result.stdout, stderr)


def _as_tags(returncode: int, stdout: str, stderr: str) -> str:
    return f"<returncode>{returncode}</returncode><stdout>{stdout}</stdout><stderr>{stderr}</stderr>"
