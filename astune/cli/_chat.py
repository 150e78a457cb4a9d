"""Talking to a run's best model in the terminal.

The conversation begins as the agent's did, with the instructions and examples that the model was trained on; what
an environment answered there is typed by the user here.
"""

from __future__ import annotations

import asyncio

from astune.app.chat import Chat, beginning_of
from astune.app.console import Console
from astune.app.run import checkpoint_of, whole_model
from astune.config.saved import load_saved
from astune.runs import RunDirectory, resolve_run
from astune.schema import ContextOverflow, visible


def chat_with(run: str, message: str | None) -> int:
    """Answer `message`, or every line that is typed until an empty one or end of input."""
    path = resolve_run(run, prefer="model")
    checkpoint = checkpoint_of(run)
    config = load_saved(RunDirectory.open(path).config_path)
    console = Console()
    beginning = beginning_of(RunDirectory.open(path))
    chat = Chat(config, str(whole_model(checkpoint)), beginning)
    if message is None:
        console.say(
            f"step {checkpoint.step} of {path}, after {len(beginning)} messages that the agent begins with; "
            "an empty line ends the conversation"
        )
    with asyncio.Runner() as runner:  # waits for input outside the loop, where Ctrl-C ends it at once
        try:
            if message is not None:
                runner.run(_answer(chat, message, _Written(console, "")))
            else:
                _talk(chat, runner, console)
        finally:
            runner.run(chat.aclose())
    return 0


def _talk(chat: Chat, runner: asyncio.Runner, console: Console) -> None:
    while line := _ask(console):
        try:
            runner.run(_answer(chat, line, _Written(console, "green")))
        except ContextOverflow:
            console.print("the conversation is longer than rollout.max_model_len allows; starting a new one")


async def _answer(chat: Chat, text: str, written: _Written) -> None:
    written.up_to(await chat.answer(text, written.up_to), end="\n")


class _Written:
    """An answer on the terminal, as far as it is sampled."""

    def __init__(self, console: Console, style: str) -> None:
        self._console = console
        self._style = style
        self._length = 0

    def up_to(self, text: str, end: str = "") -> None:
        """Print what is new of the answer, whose beginning never changes."""
        new, self._length = text[self._length :], max(self._length, len(text))
        if new or end:
            self._console.print(visible(new), end=end, style=self._style, markup=False, highlight=False, soft_wrap=True)
            self._console.file.flush()


def _ask(console: Console) -> str:
    """The next line; empty at the end of input and on Ctrl-C."""
    try:
        return console.input("[bold]you: [/]").strip()
    except (EOFError, KeyboardInterrupt):
        return ""
