"""`make e2e-debug`: the math agent on four rows of GSM8K, its model in this process and then behind a real vLLM server.

The output is shown as a user sees it. AppWorld's part is in tests/tutorial/test_example_appworld.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from astune_command import MAIN, ROOT
from viewer_stage import require_shown

from astune.runs import RunDirectory, resolve_run

pytestmark = pytest.mark.e2e

N_ROWS = 4
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
ENGINES = {
    "in_process": (),
    "vllm": ("engine.type=vllm", f"engine.vllm.python={VLLM_PYTHON}", "engine.kv_cache_gb=1"),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_math_agent_on_real_rows_by(
    engine: str, gsm8k_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    settings = (
        f"debug.debug_first_n_tasks={N_ROWS}",
        "debug.debug_max_parallel=2",
        f"task_reader.huggingface.dataset_path={gsm8k_folder}",
        *ENGINES[engine],
    )
    words = [word for each in settings for word in ("--set", each)]
    conf = ROOT / "tutorial" / "example_math_agent" / "math_agent.yaml"
    with capfd.disabled():
        astune(tmp_path, "--conf", str(conf), "--backbone", "debug", *words)
        astune(tmp_path, "replay", "launcher_record/math_agent", "--check")
    run = RunDirectory.open(resolve_run(tmp_path / "launcher_record" / "math_agent"))
    assert run.info().status == "finished"
    with run.episodes() as reader:
        episodes = list(reader.episodes())
    assert len(episodes) == N_ROWS
    for episode in episodes:
        assert episode.status in ("success", "failed"), episode.status
        assert episode.reward is not None
        assert episode.forest.sampled_tokens() > 0
    require_shown(run.path)


def astune(folder: Path, *arguments: str) -> None:
    """Shown while it runs; vLLM takes a minute to start, and more on a busy machine."""
    subprocess.run([sys.executable, "-c", MAIN, *arguments], cwd=folder, check=True, timeout=900)
