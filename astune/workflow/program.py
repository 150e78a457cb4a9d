"""An agent that is a program of its own, in any language: it gets a task and a model's address, and prints a result.

    standard input, $ASTUNE_TASK     the task as JSON (a line, and a file of it)
    OPENAI_BASE_URL, OPENAI_API_KEY  the episode's model; ASTUNE_MODEL is its name; ANTHROPIC_... alike
    last line of standard output     the result: a JSON object, or any text, which is the final answer

Each episode has a process group and a working directory of its own, which end with it.
"""

from __future__ import annotations

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
from astune.processes.ending import how_it_ended
from astune.processes.program import ProgramEnd, run_program
from astune.schema import ConfigError, Task, WorkflowError
from astune.workflow.agent_result import AgentResult, given_task
from astune.workflow.base import Workflow, WorkflowOutput
from astune.workflow.proxy import AstuneProxy

_SHOWN_CHARACTERS = 800
_FIELD = re.compile(r"\{(\w+)\}")
_SECRETS = re.compile(r"(API_KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)
"""Names of variables that the program does not inherit."""


class ProgramWorkflow(Workflow):
    """Runs `command` once."""

    command: Sequence[str] = ()
    memory: int = 0
    fields: Sequence[str] = ()

    async def execute(self, task: Task, proxy: AstuneProxy) -> WorkflowOutput | None:
        given = given_task(task, proxy, [*self.fields, *fields_of(self.command)])
        address = proxy.as_oai_baseurl_apikey()
        variables = variables_of(address.base_url, address.api_key, proxy.model_name)
        ended = await run_once(self.command, given, variables, memory=self.memory)
        proxy.update_judge_input_dictionary(stdout=ended.stdout, stderr=ended.stderr, exit_status=ended.status)
        if proxy.cut is None:
            require_success(ended, self.command, task.task_id)
        result = AgentResult.printed(ended.stdout)
        return result.conclude(proxy, trusted=self.config.rollout.trust_program_reward)


def program_workflow(config: ProgramConfig, base_dir: Path | None = None) -> type[ProgramWorkflow]:
    """The workflow of a program, its files found.

    Raises:
        ConfigError: no such program can be started.
    """

    class Program(ProgramWorkflow):
        command = found_command(config.command, base_dir, key="rollout.workflow.command: ")
        memory = (config.memory_mb or 0) * 2**20
        fields = config.fields

    return Program


def found_command(command: Sequence[str], base_dir: Path | None, *, key: str = "") -> list[str]:
    """The command with its files' whole paths, since it runs in a folder of its own.

    Raises:
        ConfigError: no such program can be started; `key` is what names it.
    """
    folders = [Path.cwd()] if base_dir is None else [Path.cwd(), base_dir.resolve()]
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
    """What SDKs read of where the model is."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ASTUNE_MODEL": model,
    }


async def run_once(
    command: Sequence[str], given: dict[str, Any], variables: Mapping[str, str], *, memory: int = 0
) -> ProgramEnd:
    """Run the command on a task in a folder of its own; nothing of it is left afterwards.

    Args:
        variables: what it gets beside our own without what looks like a secret.
        memory: bytes that it may hold; 0 is no limit.

    Raises:
        WorkflowError: it could not be started.
    """
    kept = {name: value for name, value in os.environ.items() if not _SECRETS.search(name)}
    with tempfile.TemporaryDirectory(prefix="astune-program-", ignore_cleanup_errors=True) as folder:
        task_file, work = Path(folder) / "task.json", Path(folder) / "work"
        task_file.write_text(json.dumps(given) + "\n")
        work.mkdir()
        try:
            return await run_program(
                _filled(command, given),
                source=task_file,
                environment={**kept, **variables, "ASTUNE_TASK": str(task_file)},
                folder=work,
                memory=memory,
            )
        except (OSError, ValueError) as cause:
            raise WorkflowError(f"the program {command[0]} could not be started: {cause}") from cause


def require_success(ended: ProgramEnd, command: Sequence[str], task_id: str) -> None:
    """Raise WorkflowError where the program failed."""
    if ended.memory:
        how = f"held {ended.memory >> 20} MiB of memory and was ended"
        hint = "raise rollout.workflow.memory_mb if it may hold as much"
    elif ended.status != 0:
        how = how_it_ended(ended.status)
        hint = (ended.stderr or ended.stdout).strip()[-_SHOWN_CHARACTERS:] or "it printed nothing"
    else:
        return
    raise WorkflowError(f"the program {command[0]} {how} on task {task_id}", hint=hint)


def _found(argument: str, folders: Sequence[Path]) -> str:
    """A file by its whole path, since the program runs in a folder of its own; any other argument as it is."""
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
