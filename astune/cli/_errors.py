"""How a command ends: a user's mistake is one line and a hint, a defect of ours is everything that Python knows."""

from __future__ import annotations

import sys
import sysconfig
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
_OPTIONAL = {"torch", "transformers", "safetensors", "peft", "gguf", "agentscope"}


def exit_with(work: Callable[[], int]) -> NoReturn:
    """Do the work of a command, with what `.env` says, and end the process with its status."""
    from astune.launcher.env_file import read_env_file
    from astune.schema import AstuneError

    try:
        read_env_file(Path.cwd())
        status = work()
    except AstuneError as error:
        show_error(error)
        status = exit_status(error)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OPTIONAL:
            raise
        _print_error(f"this needs {error.name}, which is not installed", "pip install 'astune[local,agentscope]'")
        status = EXIT_CONFIG
    except KeyboardInterrupt:
        _print_error("interrupted", "")
        status = EXIT_INTERRUPTED
    raise typer.Exit(status)


def exit_status(error: AstuneError) -> int:
    from astune.schema import ConfigError

    return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED


def show_error(error: AstuneError) -> None:
    """One line that says what is wrong, where in the user's code it comes from, and the fix."""
    place = _place_in_user_code(error)
    _print_error(f"{type(error).__name__}: {error.message}{f' ({place})' if place else ''}", error.hint)


def _print_error(message: str, hint: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    console.print(Text("error: ", style="bold red"), Text(message), sep="", soft_wrap=True)
    if hint:
        console.print(Text("hint: ", style="bold cyan"), Text(hint), sep="", soft_wrap=True)


def _place_in_user_code(error: BaseException) -> str:
    """File and line of the last frame that is neither ours nor installed, along the chain of causes."""
    not_users = (Path(__file__).parent.parent, Path(sysconfig.get_path("stdlib")), Path(sys.prefix))
    place = ""
    cause = error.__cause__
    while cause is not None:
        for frame in traceback.extract_tb(cause.__traceback__):
            path = Path(frame.filename)
            if path.is_absolute() and not any(folder in path.parents for folder in not_users):
                place = f"{frame.filename}, line {frame.lineno}"
        cause = cause.__cause__
    return "" if place and place in str(error) else place
