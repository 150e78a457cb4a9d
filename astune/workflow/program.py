"""An agent program in any language: it receives a task and a model's URL, and prints a result.

    standard input, $ASTUNE_TASK     the task as JSON (a line, and a file of it)
    OPENAI_BASE_URL, OPENAI_API_KEY  the episode's model; ASTUNE_MODEL is its name; ANTHROPIC_... alike
    last line of standard output     the result: a JSON object, or any text, which is the final answer

Each episode has its own process group and working directory, which are removed at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astune.config.schema import ProgramConfig
from astune.processes.ending import how_it_ended
from astune.processes.program import ProgramEnd, run_program
from astune.processes.scratch import Scratch
from astune.sandbox.inside.removal import remove_all
from astune.sandbox.jail import Jail, jailed_environment
from astune.schema import ConfigError, Task, WorkflowError, to_the_end
from astune.workflow.agent_result import AgentResult, given_task, warn_of_failure
from astune.workflow.base import Workflow, WorkflowOutput
from astune.workflow.proxy import AstuneProxy

_SHOWN_CHARACTERS = 800
_FIELD = re.compile(r"\{(\w+)\}")
_SECRETS = re.compile(r"(API_KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)
"""Names of variables that the program does not inherit."""
SANDBOXED_MEMORY_MB = 2048
TRY_AGAIN = 75
"""Exit status that requests a retry: EX_TEMPFAIL of `sysexits.h`."""
_NOT_STARTED = (126, 127)
_SENT = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Signals sent by others; the kernel sends SIGKILL when memory runs out."""


class ProgramWorkflow(Workflow):
    """Runs `command` once."""

    command: Sequence[str] = ()
    memory: int = 0
    fields: Sequence[str] = ()
    jail: Jail | None = None

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | None:
        given = given_task(task, proxy, [*self.fields, *fields_of(self.command)])
        address = proxy.as_oai_baseurl_apikey()
        variables = variables_of(address.base_url, address.api_key, proxy.model_name)
        ended = await run_once(self.command, given, variables, memory=self.memory, jail=self.jail)
        proxy.update_judge_input_dictionary(stdout=ended.stdout, stderr=ended.stderr, exit_status=ended.status)
        asked = proxy.answers > 0
        failed = proxy.cut is None and has_failed(ended, self.command, task.task_id, asked=asked)
        result = AgentResult.printed(ended.stdout)
        return result.conclude(proxy, trusted=self.config.rollout.trust_program_reward, failed=failed)


def program_workflow(config: ProgramConfig, base_dir: Path | None = None) -> type[ProgramWorkflow]:
    """The workflow of a program, its files found.

    Raises:
        ConfigError: no such program can be started.
        SandboxError: it is to be sandboxed, and this machine cannot do that.
    """
    found = found_command(config.command, base_dir, key="rollout.workflow.command: ")
    memory_mb = config.memory_mb or (SANDBOXED_MEMORY_MB if config.sandboxed else 0)

    class Program(ProgramWorkflow):
        command = found
        memory = memory_mb * 2**20
        fields = config.fields
        jail = jail_of(found, config.readable, memory_mb, base_dir) if config.sandboxed else None

    return Program


def jail_of(command: list[str], readable: Sequence[str], memory_mb: int, base_dir: Path | None) -> Jail:
    """Return a jail that works here, and shows the command's files; the command's program becomes an absolute path.

    Raises:
        ConfigError: a path is missing, or the program is not visible inside.
        SandboxError: this machine lacks what a jail is made of.
    """
    folders = _folders(base_dir)
    more = [_existing(path, folders) for path in readable]
    jail = Jail([*(argument for argument in command if Path(argument).is_absolute()), *more], memory_mb)
    command[0] = shutil.which(command[0]) or command[0]
    if not jail.shows(command[0]):
        raise ConfigError(
            f"rollout.workflow.command: the sandbox does not show {os.path.realpath(command[0])}",
            hint="add its folder to rollout.workflow.readable, or name a program of the system",
        )
    jail.try_out()
    return jail


def _folders(base_dir: Path | None) -> list[Path]:
    return [Path.cwd()] if base_dir is None else [Path.cwd(), base_dir.resolve()]


def _existing(path: str, folders: Sequence[Path]) -> str:
    for folder in folders:
        if (folder / path).exists():
            return os.path.normpath(folder / path)
    raise ConfigError(f"rollout.workflow.readable: there is no {path}", hint="name a file or a folder")


def found_command(command: Sequence[str], base_dir: Path | None, *, key: str = "") -> list[str]:
    """Return the command with absolute file paths, since it runs in its own folder.

    Raises:
        ConfigError: the program cannot be started; `key` is its configuration key.
    """
    folders = _folders(base_dir)
    found = [_found(argument, folders) for argument in command]
    if shutil.which(found[0]) is None:
        raise ConfigError(
            f"{key}there is no program {command[0]}",
            hint="name one that is on the PATH, or an executable file, as ./agent.sh",
        )
    return found


def fields_of(command: Sequence[str]) -> list[str]:
    """The fields of the task that the command names."""
    return [name for argument in command for name in _FIELD.findall(argument)]


def variables_of(base_url: str, key: str, model: str) -> dict[str, str]:
    """Return the environment variables from which SDKs read the model's URL and key."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ASTUNE_MODEL": model,
    }


async def run_once(
    command: Sequence[str],
    given: dict[str, Any],
    variables: Mapping[str, str],
    *,
    memory: int = 0,
    jail: Jail | None = None,
) -> ProgramEnd:
    """Run the command on a task in a temporary folder, which is removed afterwards.

    Args:
        variables: added to our own environment, from which likely secrets are removed.
        memory: limit in bytes; 0 is no limit.
        jail: what confines it; None runs it with our rights.

    Raises:
        WorkflowError: it could not be started.
    """
    filled = _filled(command, given)
    own = {name: value for name, value in os.environ.items() if not _SECRETS.search(name)}
    inherited = own if jail is None else jailed_environment()
    scratch = Scratch("program")
    try:
        task_file, work = scratch.path / "task.json", scratch.path / "work"
        task_file.write_text(json.dumps(given) + "\n")
        work.mkdir()
        if jail is not None:
            filled = jail.command(filled, url=variables["OPENAI_BASE_URL"], scratch=work, task=task_file)
        return await run_program(
            filled,
            source=task_file,
            environment={**inherited, **variables, "ASTUNE_TASK": str(task_file)},
            folder=work,
            memory=memory,
        )
    except (OSError, ValueError) as cause:
        raise WorkflowError(f"the program {command[0]} could not be started: {cause}") from cause
    finally:
        _, cancelled = await to_the_end(asyncio.to_thread(_removed, scratch))
        if cancelled:
            raise asyncio.CancelledError


def _removed(scratch: Scratch) -> None:
    remove_all(scratch.path)  # of any depth, with any modes
    scratch.remove()


def has_failed(ended: ProgramEnd, command: Sequence[str], task_id: str, *, asked: bool) -> bool:
    """Return whether the program failed after it called the model: the model's text may have caused that, so it is
    judged.

    Args:
        asked: whether it received an answer of the model.

    Raises:
        WorkflowError: it failed for another cause: it never called the model, it was killed, or it requests a retry
            (exit status 75).
    """
    if ended.memory:
        how = f"held {ended.memory >> 20} MiB of memory and was ended"
        hint = "raise rollout.workflow.memory_mb if it may hold as much"
    elif ended.status != 0:
        how = how_it_ended(ended.status)
        hint = (ended.stderr or ended.stdout).strip()[-_SHOWN_CHARACTERS:] or "it printed nothing"
    else:
        return False
    failure = f"the program {command[0]} {how} on task {task_id}"
    if asked and (ended.memory or _of_its_own(ended.status)):
        warn_of_failure(failure, hint)
        return True
    raise WorkflowError(failure, hint=hint)


def _of_its_own(status: int | None) -> bool:
    """Return whether a program ended by itself; shells report 128 + n for a command ended by signal n."""
    if status is None:
        return False
    number = -status if status < 0 else status - 128
    return status not in (TRY_AGAIN, *_NOT_STARTED) and number not in _SENT


def _found(argument: str, folders: Sequence[Path]) -> str:
    """Return a file's absolute path, since the program runs in its own folder; other arguments are unchanged."""
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):  # no name of a file at all
            if argument and (folder / argument).is_file():
                return str(folder / argument)
    return argument


def _filled(command: Sequence[str], given: Mapping[str, Any]) -> list[str]:
    """The command with `{field}` replaced where the program may know that field; other braces stay as they are."""

    def value_of(match: re.Match[str]) -> str:
        return str(given[match[1]]) if match[1] in given else match[0]

    return [_FIELD.sub(value_of, argument) for argument in command]
