"""Talking to a run's best model in the terminal: plain chat, no agent, no environment, nothing recorded.

The conversation begins as the agent's did, with the instructions and examples that the model was trained on; what
an environment answered there is typed by the user here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rich.console import Console

from astune.app.run import best_checkpoint, whole_model
from astune.config import AstuneConfig, load_config
from astune.runs import RunDirectory, resolve_run
from astune.schema import Completion, ContextOverflow, Forest, Message, SamplingParams, visible

if TYPE_CHECKING:
    from astune.context_tracker import PendingCall

_SESSION = "chat"


def chat_with(run: str, message: str | None) -> int:
    """Answer `message`, or every line that is typed until an empty one or end of input."""
    path = resolve_run(run, prefer="model")
    checkpoint = best_checkpoint(path)
    config = load_config(RunDirectory.open(path).config_path)
    console = Console()
    beginning = beginning_of(RunDirectory.open(path))
    chat = _Chat(config, str(whole_model(checkpoint)), beginning)
    if message is None:
        console.print(
            f"step {checkpoint.step} of {path}, after {len(beginning)} messages that the agent begins with; "
            "an empty line ends the conversation",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    with asyncio.Runner() as runner:  # waits for input outside the loop, where Ctrl-C ends it at once
        try:
            chat.talk(runner, message, console)
        finally:
            runner.run(chat.aclose())
    return 0


def beginning_of(run: RunDirectory) -> list[Message]:
    """Return the messages before the question of the run's newest episode: instructions and examples."""
    with run.episodes() as episodes:
        rows = [row for row in episodes.list() if row.n_turns]
        forest = episodes.read(rows[-1].episode_id).forest if rows else Forest()
    first = next((node for node in forest.nodes if node.sampled), None)
    if first is None:
        return []
    return [{"role": node.role, "content": node.content} for node in forest.path(first.parent)[:-1]]


class _Chat:
    def __init__(self, config: AstuneConfig, model: str, beginning: list[Message]) -> None:
        from astune.context_tracker import ContextTracker
        from astune.engine.local.in_process import InProcessEngine
        from astune.engine.model_files import resolve_model
        from astune.renderers import load_renderer

        folder = resolve_model(model)
        self._config = config
        self._renderer = load_renderer(folder)
        self._tracker = ContextTracker(self._renderer, config.rollout.max_model_len)
        self._engine = InProcessEngine.load(
            folder,
            model=config.model,
            engine=config.engine,
            max_model_len=config.rollout.max_model_len,
            deterministic=False,
        )
        self._beginning = beginning
        self._messages = beginning
        self._engine.open_session(_SESSION)

    def talk(self, runner: asyncio.Runner, message: str | None, console: Console) -> None:
        if message is not None:
            runner.run(self._answer(message, _Written(console, "")))
            return
        while line := _ask(console):
            try:
                runner.run(self._answer(line, _Written(console, "green")))
            except ContextOverflow:
                console.print("the conversation is longer than rollout.max_model_len allows; starting a new one")
                self._messages = self._beginning

    async def aclose(self) -> None:
        self._engine.close_session(_SESSION)
        await self._engine.aclose()

    async def _answer(self, text: str, written: _Written) -> None:
        asked = [*self._messages, {"role": "user", "content": text}]
        pending = self._tracker.prepare(asked, agent="assistant", trainable=False)
        room = self._config.rollout.max_model_len - len(pending.prompt_ids)
        params = SamplingParams(
            max_tokens=min(room, self._config.rollout.max_response_length_in_one_turn),
            temperature=0.0,
            stop_token_ids=self._renderer.stop_token_ids,
        )
        completion = await self._sampled(pending, params, written)
        reply = self._tracker.commit(pending, completion)
        self._messages = [*asked, reply]
        written.up_to(str(reply["content"]), end="\n")

    async def _sampled(self, pending: PendingCall, params: SamplingParams, written: _Written) -> Completion:
        """The engine's completion, printed while it is made."""
        loop, tokens = asyncio.get_running_loop(), asyncio.Queue[int | None]()

        def feed(token: int) -> bool:
            loop.call_soon_threadsafe(tokens.put_nowait, token)
            return False

        sampled: list[int] = []
        answering = asyncio.create_task(
            self._engine.stream(pending.prompt_ids, params, session=_SESSION, on_token=feed)
        )
        answering.add_done_callback(lambda _: tokens.put_nowait(None))
        try:
            while (token := await tokens.get()) is not None:
                sampled.append(token)
                written.up_to(self._tracker.settled(pending, sampled).content)
            return await answering
        finally:
            answering.cancel()


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
