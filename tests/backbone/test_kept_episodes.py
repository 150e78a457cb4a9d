"""A resumed run keeps what had finished of the step in which it was killed, and only what it would sample again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from astune.backbone.kept import rewind
from astune.backbone.origin import origin_of
from astune.config import AstuneConfig
from astune.runs import RunDirectory, balance_of, resolve_run
from astune.schema import Episode, Forest, MessageNode, Reward, Task, stable_seed

CONFIG = AstuneConfig.model_validate({"rollout": {"num_repeat": 2}})
TASKS = [Task(task_id=name, main_query="?", metadata={"pair": (1, 2)}) for name in ("a", "b")]


def played(task: str, repeat: int, attempt: int = 1, *, step: int = 3, failed: bool = False, **changed: Any) -> Episode:
    name = f"train-{step:06d}-{task}-{repeat:03d}-{attempt}"
    sampled = {"trainable": True, "weights_version": 2, "logprobs": [-0.5], "finish_reason": "stop"}
    nodes = [
        MessageNode(0, None, "user", "?", [5], "agent"),
        MessageNode(1, 0, "assistant", "!", [7], "agent", **sampled),  # type: ignore[arg-type]
    ]
    made = Episode(
        episode_id=name,
        task=next(each for each in TASKS if each.task_id == task),
        split="train",
        step=step,
        repeat=repeat,
        attempt=attempt,
        seed=stable_seed(CONFIG.seed, name),
        forest=Forest(nodes),
        status="error" if failed else "success",
        reward=None if failed else Reward(raw_reward=1.0, is_success=True),
        error="WorkflowError: no" if failed else None,
    )
    return replace(made, **changed)


def record(run: RunDirectory, *episodes: Episode) -> None:
    with run.open_episodes() as store:
        for each in episodes:
            store.append(each)


def resumed(run: RunDirectory, *, origin: str = "here", version: int = 2, groups: bool = False) -> list[str]:
    told: list[str] = []
    kept = rewind(
        run,
        CONFIG,
        step=2,
        version=version,
        tasks=TASKS,
        whole_groups=groups,
        origin=origin,
        tell=told.append,
    )
    names = [each.episode_id for attempts in kept for each in attempts]
    with run.episodes() as reader:
        assert sorted(row.episode_id for row in reader.list() if row.step > 2) == sorted(names)
    count = len(kept)
    assert (f"keeping {count} finished episode{'s' if count > 1 else ''} of step 3" in told) == bool(kept)
    return [f"{attempts[-1].task.task_id}{attempts[-1].repeat}" for attempts in kept]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that resumes after step 2."""
    made = RunDirectory.create(tmp_path, "kept")
    assert not resumed(made)
    return made


def test_finished_episodes_of_the_next_step_stay_where_they_are(run: RunDirectory) -> None:
    interrupted = played("b", 1, failed=True, error="interrupted")
    record(run, played("a", 0, failed=True), played("a", 0, 2), played("b", 0), interrupted)
    record(run, replace(played("a", 1, step=4)))
    assert resumed(run) == ["a0", "b0"]
    moved = RunDirectory.open(run.superseded()[0])
    with moved.episodes() as reader:
        assert {row.episode_id for row in reader.list()} == {interrupted.episode_id, "train-000004-a-001-1"}


def test_they_are_kept_once(run: RunDirectory) -> None:
    """Training on them may be what ended the run."""
    record(run, played("a", 0))
    assert resumed(run) == ["a0"]
    assert resumed(run) == []
    record(run, played("a", 0))
    assert resumed(run) == ["a0"]


def test_what_a_step_wrote_beside_them_is_forgotten(run: RunDirectory) -> None:
    whole = played("a", 0)
    record(run, whole)
    with run.open_episodes() as store, run.open_metrics() as metrics:
        store.annotate(whole.episode_id, advantages=[1.0], n_trained=0)
        store.annotate_logprobs(whole.episode_id, np.zeros(1, dtype=np.float32))
        store.flush()
        metrics.append(3, "train", {})
    assert resumed(run) == ["a0"]
    with run.episodes() as reader:
        row = reader.row(whole.episode_id)
        assert (row.advantages, row.not_trained, row.n_trained) == (None, None, 1)
        assert reader.trainer_logprobs(whole.episode_id) is None
        assert reader.read(whole.episode_id) == whole
    assert not run.metrics()


@pytest.mark.parametrize(
    "other",
    [
        {"origin": "elsewhere"},
        {"origin": ""},
        {"version": 1},
        {"groups": True},
    ],
    ids=str,
)
def test_nothing_is_kept_of_other_weights_or_code_or_of_half_a_group_that_is_judged_as_one(
    run: RunDirectory, other: dict[str, Any]
) -> None:
    record(run, played("a", 0), played("b", 1))
    assert resumed(run, **other) == []
    assert resumed(run) == []


def test_a_whole_group_is_kept_where_groups_are_judged(run: RunDirectory) -> None:
    record(run, played("a", 0), played("a", 1), played("b", 1))
    assert resumed(run, groups=True) == ["a0", "a1"]


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"task": Task(task_id="a", main_query="Another?")},
        {"attempt": 2},
        {"status": "error", "error": "WorkflowError: no"},
        {"reward": None},
    ],
    ids=str,
)
def test_no_episode_is_kept_that_would_be_another_one_now(run: RunDirectory, changed: dict[str, Any]) -> None:
    record(run, replace(played("a", 0), **changed), played("a", 1))
    assert resumed(run) == ["a1"]


def test_a_damaged_record_is_not_kept(run: RunDirectory) -> None:
    record(run, played("a", 0), played("a", 1))
    with run.open_episodes() as store:
        store._writer_connection.execute("UPDATE episodes SET blob = x'00' WHERE repeat = 0")
    assert resumed(run) == ["a1"]


def test_a_move_that_was_broken_off_is_not_continued_with_other_episodes_kept(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from astune.runs import EpisodeStore

    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    record(run, played("a", 0), played("a", 1, failed=True))
    with monkeypatch.context() as patched:
        patched.setattr(EpisodeStore, "rewind", breaks)
        with pytest.raises(RuntimeError, match="killed"):
            resumed(run)
    assert resumed(run, origin="elsewhere") == []
    found = [row.episode_id for path in run.superseded() for row in RunDirectory.open(path).episodes().list()]
    assert "train-000003-a-000-1" in found


@pytest.mark.slow
def test_the_origin_changes_with_settings_code_and_the_files_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program, beside, weights = (tmp_path / name for name in ("agent.sh", "helper.py", "model/weights"))
    weights.parent.mkdir()
    for file in (program, beside, weights):
        file.write_text("1")
    module = type(sys)("users_module")
    module.__file__ = str(tmp_path / "agent.py")
    monkeypatch.setitem(sys.modules, "users_module", module)
    config = AstuneConfig.model_validate({"rollout": {"workflow": "x->Y", "params": {"command": "bash agent.sh"}}})

    def origin(of: AstuneConfig = config) -> str:
        return origin_of(of, [weights.parent], None)

    seen = {origin()}
    assert origin() in seen
    for number, file in enumerate((program, beside, weights)):
        file.write_text("2" * (number + 2))
        assert origin() not in seen
        seen.add(origin())
    assert origin(config.model_copy(update={"seed": 7})) not in seen
    notebook = AstuneConfig.model_validate({"rollout": {"workflow": "__main__->Mine"}})
    assert origin(notebook) == ""


AGENT = '''
import os
import signal
import time
from pathlib import Path

from astune.runs import RunDirectory, resolve_run
from astune.workflow import Workflow, WorkflowOutput


def wait_for_episodes(number):
    """Wait until so many are on the disk; it blocks, so that nothing else is played meanwhile."""
    with RunDirectory.look_at(resolve_run(Path("launcher_record"))).episodes() as reader:
        while len(reader.list()) < number:
            time.sleep(0.02)


class TwoTurns(Workflow):
    """Two calls, rewarded by chance; kills its own process where the file `fuse` counts down to zero."""

    async def execute(self, task, proxy):
        with Path("played").open("a") as file:
            file.write(f"{task.task_id}\\n")
        fuse = Path("fuse")
        if fuse.exists():
            left = int(fuse.read_text())
            fuse.write_text(str(left - 1))
            if left == 1:
                wait_for_episodes(16 + 11)  # all that began before, but for one that runs beside this one
                os.kill(os.getpid(), signal.SIGKILL)
        first = await proxy.achat(proxy.init_messages)
        again = [*proxy.init_messages, first, {"role": "user", "content": "And again?"}]
        second = await proxy.achat(again)
        return WorkflowOutput(reward=float(len(first["content"] + second["content"]) % 2))
'''
STEPS, EPISODES = 3, 16
"""Steps of a run, and episodes of each, of which two run at once."""


def start(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "astune", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def run_of(folder: Path) -> RunDirectory:
    return RunDirectory.open(resolve_run(folder / "launcher_record"))


@pytest.mark.slow
def test_a_killed_step_is_finished_and_not_begun_anew(tmp_path: Path, tiny_folder: Path) -> None:
    """In all that a resume reads and in its books, the run is one that was never killed, to the bit."""
    found: list[dict[str, Any]] = []
    for name in ("unbroken", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        configure(folder, tiny_folder)
        if name == "unbroken":
            assert start(folder, "--conf", "conf.yaml").returncode == 0
        else:
            (folder / "fuse").write_text(str(EPISODES + 13))
            assert start(folder, "--conf", "conf.yaml").returncode == -signal.SIGKILL
            (folder / "fuse").unlink()
            again = start(folder, "--resume", str(run_of(folder).path))
            assert again.returncode == 0, again.stdout + again.stderr
            # All of step 1, where the kill came before its checkpoint was written.
            found_kept = re.search(r"keeping (\d+) finished episodes? of step (\d)", again.stdout)
            assert found_kept is not None, again.stdout
            n_kept, step = map(int, found_kept.groups())
            assert n_kept > 0
            n_played = len((folder / "played").read_text().splitlines())
            assert n_played == EPISODES + 13 + (STEPS - step + 1) * EPISODES - n_kept
        found.append(state_of(run_of(folder)))
    unbroken, killed = found
    assert [name for name in unbroken if unbroken[name] != killed[name]] == []


def configure(folder: Path, model: Path) -> None:
    (folder / "agent.py").write_text(AGENT)
    (folder / "train.jsonl").write_text("".join(f'{{"main_query": "A digit? ({n})"}}\n' for n in range(8)))
    experiment = {
        "deterministic": True,
        "model": {"path": str(model)},
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}}},
        "rollout": {
            "workflow": "agent.py->TwoTurns",
            "max_model_len": 256,
            "max_response_length_in_one_turn": 6,
            "num_repeat": 8,
            "max_env_worker": 2,
        },
        "trainer": {"tasks_per_step": 2, "total_steps": STEPS, "save_freq": 1, "optim": {"lr": 1e-2}},
    }
    (folder / "conf.yaml").write_text(yaml.safe_dump({"astune": experiment}))


def state_of(run: RunDirectory) -> dict[str, Any]:
    newest = run.checkpoints.latest()
    assert newest is not None
    state = torch.load(newest.state / "trainer_state.pt", weights_only=True)
    lines = [line for line in run.metrics() if line.kind == "train"]
    with run.episodes() as reader:
        rows = reader.list(split="train")
        of_trainer = [reader.trainer_logprobs(row.episode_id) for row in rows]
    episodes = [
        (row.episode_id, row.n_sampled, row.n_trained, row.reward, row.advantages, row.not_trained, str(logprobs))
        for row, logprobs in zip(rows, of_trainer, strict=True)
    ]
    books = ("reward/", "episodes/", "groups/", "train/", "balance/")
    return {
        "model": (newest.model / "model.safetensors").read_bytes(),
        "masters": [tensor.numpy().tobytes() for tensor in state["masters"].values()],
        "episodes": sorted(episodes),
        "balance": [balance_of(line.metrics) for line in lines],
        "books": [
            {
                name: value
                for name, value in line.metrics.items()
                if name.startswith(books) and not name.endswith("per_s")
            }
            for line in lines
        ],
    }
