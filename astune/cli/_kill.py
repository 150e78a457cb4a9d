"""`astune --kill="python|ray|vllm"`: what it will end, then what it ended."""

from __future__ import annotations

import datetime

from rich.table import Table
from rich.text import Text

from astune.app.console import Console
from astune.cli._errors import EXIT_FAILED
from astune.debug import split_at_bars
from astune.processes.kill import GRACE_S, Target, end, find_targets
from astune.schema import ConfigError


def kill_processes(pattern: str, *, dry_run: bool = False) -> int:
    """List and end processes of earlier runs whose command line has one of the words; with `dry_run` only list."""
    words = split_at_bars(pattern)
    if not words:
        raise ConfigError("--kill names no word", hint='write --kill="python|ray|vllm"')
    console = Console()
    targets = find_targets(words)
    if not targets:
        console.say(f"no process that astune started matches {pattern}")
        return 0
    console.print(_table(targets))
    if dry_run:
        return 0
    with console.status(f"ending {len(targets)} processes, which may take {GRACE_S:g} s"):
        left = end(targets, grace_s=GRACE_S)
    ended = [target for target in targets if target not in left]
    console.say(f"ended {_ids(ended)}" if ended else "ended nothing")
    if left:
        console.say(f"could not end {_ids(left)}: they are not yours, or the kernel holds them")
    return EXIT_FAILED if left else 0


def _table(targets: list[Target]) -> Table:
    table = Table("process", "recorded", "what", "command", title="to be ended", title_justify="left", box=None)
    for target in targets:
        record = target.record
        since = datetime.datetime.fromtimestamp(record.recorded_at).strftime("%Y-%m-%d %H:%M:%S") if record else ""
        what = f"{record.name} of {record.run}" if record is not None else "child of the above"
        table.add_row(str(target.process.pid), since, Text(what), Text(target.command[:200]))
    return table


def _ids(targets: list[Target]) -> str:
    return f"{len(targets)} processes: {', '.join(str(target.process.pid) for target in targets)}"
