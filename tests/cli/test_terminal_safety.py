"""What a model, a user's code or a service wrote is shown on a terminal, and never obeyed by it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from astune.app.display import open_display
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


@pytest.mark.parametrize("printed", [an_error, a_line_of_a_training])
@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_nothing_that_others_wrote_steers_the_terminal(
    printed: Callable[..., str], attack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = printed(attack, tmp_path, capsys)
    assert attack not in text
    assert visible(attack) in text
