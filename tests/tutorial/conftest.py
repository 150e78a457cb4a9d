"""A tutorial's configuration played by a scripted model, with the real agent, environment and judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tutorial_stage import Play, tutorial_config

from astune.config import import_class
from astune.engine.scripted import ScriptedEngine
from astune.renderers import Renderer
from astune.rollout import RolloutPool
from astune.schema import EpisodeGroup, Task
from astune.task_judge import load_judge
from astune.workflow import Workflow


@pytest.fixture(scope="session")
def play(renderer: Renderer, tokenizer: Any) -> Play:
    async def run(path: str, task: Task, replies: Sequence[str], **overrides: Any) -> EpisodeGroup:
        config = tutorial_config(path)
        workflow = import_class(config.rollout.workflow, key="rollout.workflow", base=Workflow)
        engine = ScriptedEngine([tokenizer.encode(reply, add_special_tokens=False) for reply in replies])
        pool = RolloutPool(engine, renderer, overrides.get("workflow", workflow), load_judge(config), config)
        before = engine.stats()
        [group] = await pool.run_groups([task], step=1, split="train", num_repeat=2, temperature=1.0)
        assert pool.balance([group], engine.stats() - before).difference == 0
        return group

    return run
