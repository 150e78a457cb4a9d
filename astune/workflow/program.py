"""An agent that is a program of its own, in any language: it gets a task and a model's address, and prints a result.

    standard input, $ASTUNE_TASK     the task as JSON (a line, and a file of it)
    OPENAI_BASE_URL, OPENAI_API_KEY  the episode's model; ASTUNE_MODEL is its name; ANTHROPIC_... alike
    last line of standard output     the result: a JSON object, or any text, which is the final answer

Each episode has a process group and a working directory of its own, which end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astune.config.schema import ProgramConfig
from astune.processes.ending import how_it_ended, kill_group
from astune.schema import ConfigError, Task, WorkflowError
from astune.workflow.base import Workflow, WorkflowOutput
from astune.workflow.proxy import AstuneProxy

_KEPT_BYTES = 256 * 1024
"""The end of each output stream that is kept."""
_SHOWN_CHARACTERS = 800
_FIELD = re.compile(r"\{(\w+)\}")
_SECRETS = re.compile(r"(API_KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)
"""Names of variables that the program does not inherit."""


class ProgramWorkflow(Workflow):
    """Runs `command` once."""

    command: Sequence[str] = ()

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | None:
        given = _given(task, proxy, self.command)
        with tempfile.TemporaryDirectory(prefix="astune-program-", ignore_cleanup_errors=True) as folder:
            printed, complaints, status = await _run(_filled(self.command, given), given, proxy, Path(folder))
        proxy.update_judge_input_dictionary(stdout=printed, stderr=complaints, exit_status=status)
        if status != 0 and not proxy.context_overflow:
            raise WorkflowError(
                f"the program {self.command[0]} {how_it_ended(status)} on task {task.task_id}",
                hint=(complaints or printed).strip()[-_SHOWN_CHARACTERS:] or "it printed nothing",
            )
        result = _result_of(printed)
        if "final_answer" in result:
            proxy.update_judge_input_dictionary(final_answer=result["final_answer"])
        if "reward" in result and self.config.rollout.trust_program_reward:
            return WorkflowOutput(reward=result["reward"], is_success=result.get("is_success"))
        return None


def program_workflow(config: ProgramConfig, base_dir: Path | None = None) -> type[ProgramWorkflow]:
    """The workflow of a program, its files found.

    Raises:
        ConfigError: no such program can be started.
    """
    folders = [Path.cwd()] if base_dir is None else [Path.cwd(), base_dir.resolve()]
    found = [_found(argument, folders) for argument in config.command]
    if shutil.which(found[0]) is None:
        raise ConfigError(
            f"rollout.workflow.command: there is no program {config.command[0]}",
            hint="name one that is on the PATH, or an executable file, as ./agent.sh",
        )

    class Program(ProgramWorkflow):
        command = found

    return Program


def _found(argument: str, folders: Sequence[Path]) -> str:
    """A file by its whole path, since the program runs in a folder of its own; any other argument as it is."""
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):  # no name of a file at all
            if argument and (folder / argument).is_file():
                return str(folder / argument)
    return argument


def _given(task: Task, proxy: AstuneProxy, command: Sequence[str]) -> dict[str, Any]:
    """What the program may know of its task: of its metadata, what the command names."""
    fields = [name for argument in command for name in _FIELD.findall(argument)]
    known = {name: task.metadata[name] for name in fields if name in task.metadata}
    given = {"task_id": task.task_id, "main_query": task.main_query, "init_messages": proxy.init_messages}
    return known | given


async def _run(command: Sequence[str], given: dict[str, Any], proxy: AstuneProxy, folder: Path) -> tuple[str, str, int]:
    """What the program printed on each stream, and its exit status; nothing of it runs on afterwards.

    Raises:
        WorkflowError: it could not be started.
    """
    text = json.dumps(given)
    task_file = folder / "task.json"
    task_file.write_text(text)
    work = folder / "work"
    work.mkdir()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=work,
            env=_environment(proxy, task_file),
            start_new_session=True,
        )
    except (OSError, ValueError) as cause:
        raise WorkflowError(f"the program {command[0]} could not be started: {cause}") from cause
    try:
        printed, complaints, _ = await asyncio.gather(
            _end_of(process.stdout), _end_of(process.stderr), _write(process.stdin, text)
        )
        status = await process.wait()
    finally:
        kill_group(process.pid)
        await process.wait()
    return printed, complaints, status


def _environment(proxy: AstuneProxy, task_file: Path) -> dict[str, str]:
    """Ours without what looks like a secret, and the episode's own."""
    address = proxy.as_oai_baseurl_apikey()
    kept = {name: value for name, value in os.environ.items() if not _SECRETS.search(name)}
    return kept | {
        "OPENAI_BASE_URL": address.base_url,
        "OPENAI_API_KEY": address.api_key,
        "ANTHROPIC_BASE_URL": address.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": address.api_key,
        "ANTHROPIC_AUTH_TOKEN": address.api_key,
        "ASTUNE_MODEL": proxy.model_name,
        "ASTUNE_TASK": str(task_file),
    }


async def _write(stream: asyncio.StreamWriter | None, text: str) -> None:
    """Give the task; a program that does not read it is none the worse."""
    if stream is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(text.encode() + b"\n")
        await stream.drain()
    stream.close()


async def _end_of(stream: asyncio.StreamReader | None) -> str:
    """The end of what is printed; the rest is read and dropped, so that a program that prints much goes on."""
    kept = bytearray()
    while stream is not None and (piece := await stream.read(65536)):
        kept += piece
        del kept[:-_KEPT_BYTES]
    return kept.decode("utf-8", "replace")


def _result_of(printed: str) -> dict[str, Any]:
    """The last line where it is a JSON object; else all that was printed is the final answer."""
    lines = printed.strip().splitlines()
    with contextlib.suppress(ValueError, RecursionError):
        result = json.loads(lines[-1]) if lines else None
        if isinstance(result, dict):
            return result
    return {"final_answer": printed.strip()}


def _filled(command: Sequence[str], given: Mapping[str, Any]) -> list[str]:
    """The command with `{field}` replaced where the program may know that field; other braces stay as they are."""

    def value_of(match: re.Match[str]) -> str:
        return str(given[match[1]]) if match[1] in given else match[0]

    return [_FIELD.sub(value_of, argument) for argument in command]
