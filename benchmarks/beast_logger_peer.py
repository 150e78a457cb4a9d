"""Writes episodes as beast-logger's users write them, with its own calls, in its own environment, without ours.

    .venv-beast-logger/bin/python benchmarks/beast_logger_peer.py FOLDER < LINES

A line is an episode: {"header": text, "timelines": {name: {"reward", ..., "content": {"text", "title", "count",
"color"}}}}, its lists one item a token. Each becomes one entry of FOLDER/rollout/rollout.json.log.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    beast_logger: Any = import_module("beast_logger")
    beast_logger.register_logger(
        non_console_mods=["rollout"], base_log_path=os.path.abspath(sys.argv[1]), rotation="1 GB"
    )
    for line in sys.stdin:
        episode = json.loads(line)
        items = {
            name: beast_logger.NestedJsonItem(**{**timeline, "content": beast_logger.SeqItem(**timeline["content"])})
            for name, timeline in episode["timelines"].items()
        }
        beast_logger.print_nested(
            items, main_content=episode["header"], header=episode["header"], mod="rollout", attach="copy this"
        )


if __name__ == "__main__":
    main()
