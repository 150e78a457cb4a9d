"""What a model, a user's code or a service wrote is shown on a terminal, and never obeyed by it."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from debug_run import debugged
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import astune as package
from astune.app.chat import Chat
from astune.app.console import Console
from astune.app.display import open_display
from astune.config import AstuneConfig, dump
from astune.runs import RunDirectory
from astune.schema import visible

TITLE, CLIPBOARD, CLEAR, C1, BIDI = "\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJm\x07", "\x1b[2J", "\x9b31m", "\u202e"
ATTACKS = (TITLE, CLIPBOARD, CLEAR, C1, BIDI, "\r", "\b")


Printed = Callable[[str, Path, Callable[..., tuple[int, str, str]]], str]


def an_error(text: str, folder: Path, astune: Callable[..., tuple[int, str, str]]) -> str:
    return astune("--conf", str(folder / f"no {text}.yaml"))[2]


def a_line_of_a_training(text: str, folder: Path, astune: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    recorded = RunDirectory.create(folder, "demo")
    with recorded, open_display(AstuneConfig(), recorded, console=console) as progress:
        progress.say(f"a group was dropped: {text}")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def an_answer_in_a_chat(text: str, folder: Path, astune: Callable[..., tuple[int, str, str]]) -> str:
    async def answer(chat: Chat, asked: str, on_text: Callable[[str], object]) -> str:
        on_text(text[:3])
        return text

    with RunDirectory.create(folder, "demo") as run, run.open_episodes(), pytest.MonkeyPatch.context() as patch:
        run.save_config(dump(AstuneConfig()))
        run.checkpoints.save(0, model=lambda made: (made / "weights").write_text("none"), score=0.0)
        run.finish("finished")
        patch.setattr(Chat, "__init__", lambda *_: None)
        patch.setattr(Chat, "answer", answer)
        patch.setattr(Chat, "aclose", lambda _: asyncio.sleep(0))
        status, out, err = astune("chat", str(run.path), "-m", "hello")
    assert status == 0, err
    return out


def episodes_of_a_debug_run(text: str, folder: Path, astune: Callable[..., tuple[int, str, str]]) -> str:
    out = debugged(folder, astune, question=f"How {text}?", answer=f"So {text}!")
    for shown in (f"How {visible(text)}?", f"So {visible(text)}!", f"ValueError: How {visible(text)}"):
        assert shown in out
    assert out.count(f"False How {visible(text)}?") >= 2, "above the episode, and in the table"
    return out


@pytest.mark.parametrize("printed", [an_error, a_line_of_a_training, an_answer_in_a_chat, episodes_of_a_debug_run])
def test_nothing_that_others_wrote_steers_the_terminal(printed: Printed, tmp_path: Path, astune, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")
    text = " ".join(ATTACKS)
    shown = printed(text, tmp_path, astune)
    assert not [attack for attack in ATTACKS if attack in shown]
    assert visible(text) in shown


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_no_text_on_a_console_steers_it_wherever_it_stands(attack: str):
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor")
    table = Table(title=attack)
    table.add_column(attack)
    table.add_row(f"a {attack}")
    console.print(attack, Text(f"c {attack}", style="red"), Panel(f"b {attack}", title=attack), table)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert attack not in text
    assert "a " in text
    assert "\x1b[31m" in text, "colours of our own stay"


def test_every_command_prints_on_that_console():
    folder = Path(package.__file__).parent
    own = [path for path in folder.rglob("*.py") if re.search(r"(?<!Rich)\bConsole\(", path.read_text())]
    assert len(own) > 20
    others = [path for path in own if not re.search(r"from astune\.app\.console import Console\b", path.read_text())]
    assert others == [folder / "app" / "console.py"]
