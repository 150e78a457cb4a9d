"""A deterministic run that is killed, resumed, and looked at bit by bit."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from chaos_stage import ENDS_WITHIN_S, Nursery, begun

from astune.runs import balance_of


class Killed:
    """A deterministic run without an environment, that is started until it ends."""

    AGENT = """
from astune.workflow import Workflow, WorkflowOutput

class TwoTurns(Workflow):
    async def execute(self, task, proxy):
        first = await proxy.achat(proxy.init_messages)
        again = [*proxy.init_messages, first, {"role": "user", "content": "And again?"}]
        second = await proxy.achat(again)
        return WorkflowOutput(reward=float(len(first["content"] + second["content"]) % 2))
"""

    def __init__(self, nursery: Nursery, folder: Path, model: Path) -> None:
        folder.mkdir(parents=True)
        self._nursery, self._folder = nursery, folder
        self.seconds = 0.0
        (folder / "agent.py").write_text(self.AGENT)
        (folder / "train.jsonl").write_text("".join(f'{{"main_query": "{n}?"}}\n' for n in range(8)))
        experiment = {
            "deterministic": True,
            "model": {"path": str(model)},
            "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}}},
            "rollout": {
                "workflow": "agent.py->TwoTurns",
                "max_model_len": 128,
                "max_response_length_in_one_turn": 6,
                "num_repeat": 4,
            },
            "trainer": {
                "tasks_per_step": 2,
                "total_steps": 4,
                "save_freq": 1,
                "optim": {"lr": 1e-2, "warmup_steps": 0},
            },
        }
        (folder / "conf.yaml").write_text(yaml.safe_dump({"astune": experiment}))

    async def start(self, kill_after_s: float | None) -> int:
        """Its exit status; `seconds` is how long it ran."""
        run = begun(self._folder / "launcher_record")
        words = ("--conf", "conf.yaml") if run is None else ("--resume", str(run.path))
        began = time.monotonic()
        pid = await self._nursery.start(self._folder, self._folder / "log", "astune.cli", *words)
        ended = self._nursery.ended(pid)
        await asyncio.wait([ended], timeout=kill_after_s or ENDS_WITHIN_S)
        self.seconds = time.monotonic() - began
        if not ended.done():
            os.kill(pid, signal.SIGKILL)
        return await ended

    def state(self) -> dict[str, Any]:
        """What has to be equal: the model, the optimiser with all else that a resume reads, episodes and books."""
        run = begun(self._folder / "launcher_record")
        assert run is not None
        newest = run.checkpoints.latest()
        assert newest is not None
        state = torch.load(newest.state / "trainer_state.pt", weights_only=True)
        rows = run.episodes().list(split="train")
        found: dict[str, Any] = {f"state{name}": value for name, value in _flat(state)}
        found["model"] = (newest.model / "model.safetensors").read_bytes()
        found["episodes"] = sorted((row.step, row.task_id, row.repeat, row.n_sampled, row.reward) for row in rows)
        found["books"] = [balance_of(line.metrics) for line in run.metrics() if line.kind == "train"]
        return found


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            for key, inner in value.items():
                yield from _flat(inner, f"{name}.{key}")
        case list() | tuple():
            for number, inner in enumerate(value):
                yield from _flat(inner, f"{name}.{number}")
        case _ if hasattr(value, "numpy"):
            yield name, value.contiguous().view(-1).float().numpy().tobytes()
        case _:
            yield name, value
