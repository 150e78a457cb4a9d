"""The tutorial's program and its judge, with a scripted model in place of the trained one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rollout_stage import build_stage

from astune.config import load_config
from astune.config.schema import ProgramConfig
from astune.renderers import load_renderer
from astune.schema import Task
from astune.workflow.program import program_workflow
from tutorial.example_any_agent.judge import CALCULATED, FOUND, CalculatorJudge

FOLDER = Path(__file__).parents[2] / "tutorial" / "example_any_agent"


@pytest.mark.parametrize(
    ("answers", "reward", "success"),
    [
        (["<calc>47+16</calc>", r"\boxed{63}"], 1.0, True),
        (["<calc>47+16</calc>", r"\boxed{31}"], FOUND, False),
        (["<calc>47-16</calc>", "so it is 31"], CALCULATED, False),
        (["I cannot say"], 0.0, False),
    ],
)
def test_the_program_calculates_and_its_judge_reads_the_conversation(
    answers: list[str], reward: float, success: bool, smol_folder: Path
) -> None:
    config = load_config(FOLDER / "any_agent.yaml")
    assert isinstance(config.rollout.workflow, ProgramConfig)
    renderer: Any = load_renderer(smol_folder)
    ask = {"role": "user", "content": "?"}
    replies = [renderer.answer_ids([ask, {"role": "assistant", "content": text}], []) for text in answers]
    workflow = program_workflow(config.rollout.workflow, FOLDER)
    stage = build_stage(renderer, workflow, replies=replies, judge=CalculatorJudge(config))
    task = Task(task_id="t", main_query="Tom has 47 pens and finds 16. How many?", metadata={"answer": "63"})
    (group,) = asyncio.run(stage.play([task]))
    (episode,) = group.episodes or group.failed_attempts
    assert episode.reward is not None, episode.error
    assert (episode.reward.raw_reward, episode.reward.is_success) == (reward, success)
