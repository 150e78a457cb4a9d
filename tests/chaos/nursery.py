"""A warm interpreter that forks commands of astune, which begin at once and not after seconds of imports.

Run as `python nursery.py MODEL MODULE...`, with the folder of a model whose tokenizer is read, and what is imported.
Standard input and output are lines of JSON:

    {"main": "astune.cli", "argv": [...], "folder": ..., "variables": {...}, "log": ...}    fork a command
    -> {"pid": 7}                                                                           it began
    -> {"pid": 7, "status": -9}                                                             it ended

Each command leads a session of its own. It is a process like any other: what is tested is not only how it forks.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn


def main() -> None:
    _, model, *modules = sys.argv
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _read_once(Path(model))
    gc.collect()
    gc.freeze()
    _say(ready=True)
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap()
        if 0 in ready:
            read = os.read(0, 1 << 16)
            if not read:
                return
            *lines, waiting = (waiting + read).split(b"\n")
            for line in lines:
                _fork(json.loads(line))


def _read_once(model: Path) -> None:
    """What a process keeps once it has it: half of a short run's time."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    from astune.renderers import load_renderer

    get_checkpoint_conversion_mapping("llama")
    load_renderer(model)


def _fork(order: dict[str, Any]) -> None:
    pid = os.fork()
    if pid == 0:
        _become(order)
    _say(pid=pid)


def _become(order: dict[str, Any]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, number)
    os.closerange(3, 1 << 10)
    os.chdir(order["folder"])
    os.environ.update(order["variables"])
    sys.argv = order["argv"]
    sys.exit(importlib.import_module(order["main"]).main())


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say(pid=pid, status=os.waitstatus_to_exitcode(status))


def _say(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
