"""What a model, a user's code or a service wrote is shown on a terminal, and never obeyed by it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from viewer_stage import make_episode

import astune
from astune.app.console import Console
from astune.app.display import open_display
from astune.cli._chat import _Written
from astune.cli._debug import episodes_table
from astune.cli._episode_text import draw_episode
from astune.cli.app import run
from astune.config import AstuneConfig
from astune.runs import RunDirectory
from astune.schema import visible

TITLE, CLIPBOARD, CLEAR, C1, BIDI = "\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJm\x07", "\x1b[2J", "\x9b31m", "\u202e"
ATTACKS = (TITLE, CLIPBOARD, CLEAR, C1, BIDI, "\r", "\b")


def an_error(attack: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        run(["--conf", str(folder / f"no {attack}.yaml")])
    return capsys.readouterr().err


def a_line_of_a_training(attack: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    console = Console(file=io.StringIO(), width=200)
    recorded = RunDirectory.create(folder, "demo")
    with recorded, open_display(AstuneConfig(), recorded, console=console) as progress:
        progress.say(f"a group was dropped: {attack}")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def an_answer_in_a_chat(attack: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    console = Console(file=io.StringIO(), width=200)
    _Written(console, "green").up_to(attack, end="\n")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def an_episode_of_a_debug_run(attack: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    console = Console(file=io.StringIO(), width=200)
    episode = make_episode(question=attack, answer=attack, error=attack, task=attack)
    console.print(draw_episode(episode), episodes_table([episode]))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("printed", [an_error, a_line_of_a_training, an_answer_in_a_chat, an_episode_of_a_debug_run])
@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_nothing_that_others_wrote_steers_the_terminal(
    printed: Callable[..., str], attack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = printed(attack, tmp_path, capsys)
    assert attack not in text
    assert visible(attack) in text


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
    folder = Path(astune.__file__).parent
    own = [path for path in folder.rglob("*.py") if re.search(r"(?<!Rich)\bConsole\(", path.read_text())]
    assert len(own) > 20
    others = [path for path in own if not re.search(r"from astune\.app\.console import Console\b", path.read_text())]
    assert others == [folder / "app" / "console.py"]
