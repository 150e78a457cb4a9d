"""Draw a run's reference training curve: reward in training and held-out success with its interval, by step.

    python scripts/draw_curve.py launcher_record/math_agent/RUN docs/assets/curve-math-agent.svg

The second path's ending, `.svg` or `.png`, decides the form. The run needs its metrics and episodes, no checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from astune.cli._plots import reward_picture
from astune.runs import RunDirectory
from astune.runs.report import read_report
from astune.schema import AstuneError

USAGE = "usage: python scripts/draw_curve.py RUN PICTURE.svg|PICTURE.png\n"


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case [run, target] if (form := Path(target).suffix[1:]) in ("svg", "png"):
            return draw(Path(run), Path(target), "svg" if form == "svg" else "png")
    sys.stderr.write(USAGE)
    return 2


def draw(run: Path, target: Path, form: Literal["png", "svg"]) -> int:
    try:
        picture = reward_picture(read_report(RunDirectory.open(run)), form)
    except AstuneError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if picture is None:
        sys.stderr.write(f"error: {run} has no step to draw, or matplotlib is not installed\n")
        return 1
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(picture)
    sys.stdout.write(f"{target}: {len(picture):,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
