import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astune.schema import Episode, Forest, MessageNode, Reward, Split, Task


def make_episode(
    step: int = 1,
    task: int = 0,
    repeat: int = 0,
    *,
    split: Split = "train",
    success: bool = True,
    error: str | None = None,
    tokens: int = 20,
    attempt: int = 0,
    answer: str = "\\boxed{4}",
) -> Episode:
    """Two turns: the question is read, an answer of `tokens` tokens written, an observation read, an answer written."""
    logprobs = [-0.1 * position - 1e-9 for position in range(tokens)]
    nodes = [
        MessageNode(0, None, "user", "2 + 2 [bold]?", list(range(10)), "agent"),
        MessageNode(1, 0, "assistant", "<calc>2+2</calc>", [1, *range(tokens)], "agent", logprobs=logprobs),
        MessageNode(2, 1, "user", "4", [7, 8], "agent"),
        MessageNode(3, 2, "assistant", answer, [1, *range(tokens)], "agent", logprobs=logprobs),
    ]
    for node in (nodes[1], nodes[3]):
        node.finish_reason, node.weights_version, node.trainable = "stop", step - 1, True
    return Episode(
        episode_id=f"{split}-{step:06d}-task{task}-{repeat:03d}-{attempt}",
        task=Task(task_id=f"task{task}", main_query=f"What is {task} + 2 [bold]?", metadata={"answer": "4"}),
        split=split,
        step=step,
        repeat=repeat,
        attempt=attempt,
        seed=2**64 - 1,
        forest=Forest(nodes),
        status="error" if error else ("success" if success else "failed"),
        reward=None if error else Reward(raw_reward=float(success), is_success=success),
        error=error,
        metrics={"calls": 2.0},
        timings={"total": 0.5, "model": 0.4},
        judge_inputs={"final_answer": answer},
    )


@pytest.fixture
def episode() -> Callable[..., Episode]:
    return make_episode


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB that a test may fill."""
    folder = tmp_path / "small_disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
