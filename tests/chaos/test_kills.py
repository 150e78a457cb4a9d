"""With `deterministic: true` a run that was killed again and again ends with the weights of one that never was.

`make kills N=50 SEED=0` kills as often, at random moments; compared are the model, the optimiser and the books.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
from chaos_report import write_section
from chaos_stage import Nursery
from killed import Killed

pytestmark = pytest.mark.slow
N = int(os.environ.get("KILLS_N", "2"))
SEED = int(os.environ.get("KILLS_SEED", "0"))
REPORT = os.environ.get("CHAOS_REPORT")
_MOST_A_RUN = 5


def test_a_run_that_is_killed_at_any_moment_ends_with_the_same_weights_and_books(
    speck_folder: Path, tmp_path: Path
) -> None:
    moments, n_runs = asyncio.run(_killed(speck_folder, tmp_path))
    assert len(moments) == N
    if REPORT:
        spread = f"between {min(moments):.1f} and {max(moments):.1f} s after its start"
        lines = [
            f"{N} SIGKILLs in {n_runs} runs, each {spread}: model, optimiser, episodes and books of every run are "
            f"those of an unbroken one, bit for bit (seed {SEED})."
        ]
        write_section(Path(REPORT), "make kills", lines)


async def _killed(model: Path, folder: Path) -> tuple[list[float], int]:
    rng, moments, n_runs = random.Random(SEED), list[float](), 0
    async with Nursery.open(model) as nursery:
        unbroken = Killed(nursery, folder / "unbroken", model)
        assert await unbroken.start(None) == 0
        expected, whole_s = unbroken.state(), unbroken.seconds
        assert expected["model"] != (model / "model.safetensors").read_bytes()
        while len(moments) < N:
            n_runs += 1
            run = Killed(nursery, folder / f"{n_runs}", model)
            for _ in range(min(_MOST_A_RUN, N - len(moments))):
                status = await run.start(rng.uniform(0.05, whole_s))
                if status == 0:  # it was over before
                    break
                assert status == -signal.SIGKILL
                moments.append(run.seconds)
            assert await run.start(None) == 0
            found = run.state()
            assert found.keys() == expected.keys()
            assert [name for name in expected if found[name] != expected[name]] == [], f"KILLS_SEED={SEED}"
    return moments, n_runs
