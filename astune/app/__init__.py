"""The command line's actions as Python functions: train, tune, evaluate, debug and resume.

    api.py           the functions; run.py and evaluation.py  their results; tuning.py  AgentScope's arguments
    experiment.py    a configuration with its backbone and its parts; execution.py  a run of one, start to end
    beside.py        companions and the message at the end; interrupts.py  Ctrl-C
    console.py       what is printed on, which no text of others steers
    display.py       progress on a terminal or in plain lines, from what progress.py counts; debugging.py  debug runs

Submodules are imported lazily: `astune --help` needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astune.app.api import debug, evaluate, resume, train
    from astune.app.evaluation import Evaluation
    from astune.app.run import Run
    from astune.app.tuning import tune

__all__ = ["Evaluation", "Run", "debug", "evaluate", "resume", "train", "tune"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from astune.app import api, tuning

    return getattr(tuning if name == "tune" else api, name)
