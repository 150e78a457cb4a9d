"""How much of all time led to kept progress, with a fault in a tenth of the steps.

`make effective STEPS=20 RUNS=4` plays so many runs at once of so many steps, first with kills of the run alone and then
with faults of every kind. The agents' world answers after up to WAITS_S seconds, twice an episode. A step has more
episodes than run at once, as it has where environments are what is scarce.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from chaos_report import write_effective
from chaos_stage import Nursery, Slot
from paced import Fault, TimeSpent, faults_of, paced

from astune.runs import MetricsLine

STEPS = int(os.environ.get("EFFECTIVE_STEPS", "20"))
RUNS = int(os.environ.get("EFFECTIVE_RUNS", "4"))
WAITS_S = float(os.environ.get("EFFECTIVE_WAITS_S", "12"))
REPEATS = int(os.environ.get("EFFECTIVE_REPEATS", "6"))
AT_ONCE = int(os.environ.get("EFFECTIVE_AT_ONCE", "4"))
SEED = int(os.environ.get("EFFECTIVE_SEED", "0"))
REPORT = os.environ.get("CHAOS_REPORT")
_ENOUGH = 0.95


def test_faults_come_in_a_tenth_of_the_steps() -> None:
    faults = [faults_of(seed, 20, kills_alone=False) for seed in range(50)]
    assert all(len(each) == 2 for each in faults)
    assert len({(fault.where, fault.what) for each in faults for fault in each.values()}) > 15


def test_all_time_is_in_one_account() -> None:
    def line(step: int, at: float, seconds: float) -> MetricsLine:
        return MetricsLine(step, "train", at, 0.0, {"time/rollout_s": seconds - 1, "time/train_s": 1.0})

    lines = [line(1, 115, 10), line(2, 126, 10), line(3, 170, 30), line(4, 181, 10)]
    starts = [(100.0, 130.0), (130.0, 135.0), (135.0, 183.0)]
    spent = TimeSpent.of(lines, starts, {3: Fault("agent", "hangs", 0.0)})
    assert spent == TimeSpent(83, 40, 20, 10, 2, 11, 4, 3, (Fault("agent", "hangs", 0.0),))


@pytest.mark.parametrize(("resumed_s", "before_kill"), [(4, 6), (1, 8), (12, 0)])
def test_what_a_kill_left_of_a_step_counts_once_and_as_no_more_than_a_step(resumed_s: int, before_kill: int) -> None:
    def line(step: int, at: float, seconds: float) -> MetricsLine:
        return MetricsLine(step, "train", at, 0.0, {"time/rollout_s": seconds})

    lines = [line(1, 110, 10), line(2, 120, 10), line(3, 130 + resumed_s, resumed_s)]
    kill = {3: Fault("processes", "kill run", 0.0)}
    spent = TimeSpent.of(lines, [(100, 128), (128, 130 + resumed_s)], kill)
    assert spent.kept == 20 + min(10, resumed_s) + before_kill
    assert spent.repeated == 8 - before_kill
    assert spent.all == 30 + resumed_s


@pytest.mark.e2e
@pytest.mark.parametrize("kills_alone", [True, False], ids=["kills", "all"])
def test_nearly_all_time_leads_to_kept_progress(kills_alone: bool, speck_folder: Path, tmp_path: Path) -> None:
    spent = asyncio.run(_paced(speck_folder, tmp_path, kills_alone))
    ratio = sum(run.kept for run in spent) / sum(run.all for run in spent)
    if REPORT:
        write_effective(Path(REPORT), spent, WAITS_S, 2 * REPEATS, AT_ONCE, kills_alone=kills_alone)
    assert ratio >= _ENOUGH or kills_alone


async def _paced(model: Path, folder: Path, kills_alone: bool) -> Sequence[TimeSpent]:
    async with Nursery.open(model) as nursery:

        async def played(number: int) -> TimeSpent:
            async with Slot.open(nursery, folder / f"slot-{number}", model, 4 * WAITS_S) as slot:
                return await paced(slot, SEED + number, STEPS, WAITS_S, REPEATS, AT_ONCE, kills_alone=kills_alone)

        async with asyncio.TaskGroup() as runs:  # each slot is cleared before the nursery closes
            playing = [runs.create_task(played(number)) for number in range(RUNS)]
        return [run.result() for run in playing]
