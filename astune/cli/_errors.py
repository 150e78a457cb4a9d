"""Exits of a command: a user's mistake is one line and a hint, a defect of ours is everything that Python knows."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from astune.schema import AstuneError


EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_INTERRUPTED = 130
RESUMES = "the same command resumes"
_OPTIONAL = {"torch", "transformers", "safetensors", "peft", "gguf", "agentscope"}


def exit_with(work: Callable[[], int], *, interrupted: str = "") -> NoReturn:
    """Do the work of a command, with what `.env` says, and end the process with its status; see `Commands.command`."""
    from astune.launcher.env_file import read_env_file
    from astune.schema import AstuneError, left_debugger

    try:
        read_env_file(Path.cwd())
        status = work()
    except AstuneError as error:
        if left_debugger(error):
            _print_error("interrupted", "")
            status = EXIT_INTERRUPTED
        else:
            show_error(error)
            status = exit_status(error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OPTIONAL:
            raise
        from astune.schema import install_extra

        _print_error(f"this needs {error.name}, which is not installed", install_extra("local,agentscope"))
        status = EXIT_CONFIG
    except KeyboardInterrupt:
        _print_error("interrupted", interrupted)
        status = EXIT_INTERRUPTED
    raise typer.Exit(status)


def exit_status(error: AstuneError) -> int:
    from astune.schema import ConfigError

    return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


def show_error(error: AstuneError) -> None:
    """A line that says what is wrong, where in the user's code it comes from, and the fix; for each of several."""
    from astune.schema import SeveralFaults

    if isinstance(error, SeveralFaults):
        for fault in error.faults:
            show_error(fault)
        return
    place = _place_in_user_code(error)
    _print_error(f"{error.kind}: {error.message}{f' ({place})' if place else ''}", error.hint)


def _print_error(message: str, hint: str) -> None:
    from rich.text import Text

    from astune.app.console import Console
    from astune.schema import visible

    console = Console(stderr=True)
    console.print(Text("error: ", style="bold red"), Text(visible(message)), sep="", soft_wrap=True)
    if hint:
        console.print(Text("hint: ", style="bold cyan"), Text(visible(hint)), sep="", soft_wrap=True)


def _place_in_user_code(error: BaseException) -> str:
    """File and line of the user's last frame, along the chain of causes."""
    from astune.schema import causes_of, is_users

    place, short = "", ""
    for cause in causes_of(error.__cause__):
        for frame in traceback.extract_tb(cause.__traceback__):
            if Path(frame.filename).is_absolute() and is_users(frame.filename):
                place, short = f"{frame.filename}, line {frame.lineno}", f"{frame.filename}:{frame.lineno}"
    return "" if place in str(error) or short in str(error) else place
