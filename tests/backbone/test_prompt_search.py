"""A search for prompts whose helper model fails, with the real GEPA where it is installed and one like it elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astune.backbone import prompt_search
from astune.backbone.search_journal import SearchJournal
from astune.config.schema import AstuneConfig
from astune.helper_model import Usage
from astune.schema import BudgetSpent, Episode, Forest, Reward, Task

TASKS = [Task(f"t{number}", main_query="Order tea.") for number in range(12)]


class Spent:
    """A helper model whose budget is used up."""

    used = Usage()
    asked = 0

    async def ask(self, instruction: str, question: str) -> str:
        self.asked += 1
        raise BudgetSpent("the budget is used up")


class Player:
    """Plays every task in no time."""

    def __init__(self) -> None:
        sections = {"prompt_search": {"validation_tasks": 4, "max_episodes": 60}}
        self.config = AstuneConfig.model_validate(sections)
        self.ledger = SimpleNamespace(step=0)
        self.loop = asyncio.get_running_loop()
        self.tried = 0

    async def try_out(self, prompts: dict[str, str], tasks: list[Task], more: Any) -> list[Any]:
        self.tried += 1
        return [ended(each, Reward(raw_reward=0.0, is_success=False)) for each in tasks]


def ended(task: Task, reward: Reward, status: Any = "failed") -> Episode:
    return Episode(task.task_id, task, "train", 1, 0, 0, 0, Forest(), status, reward)


def optimize(*, adapter: Any, seed_candidate: dict[str, str], reflection_lm: Any, valset: Any, **more: Any) -> Any:
    """It drops what a reflection raises, as GEPA 0.1.4 does, and here also at the very end of the search."""
    adapter.evaluate(valset, seed_candidate)
    for _ in range(2):
        with suppress(Exception):
            reflection_lm("Improve it.")
    return SimpleNamespace(best_candidate=seed_candidate)


def stand_in() -> tuple[Any, Any]:
    return SimpleNamespace(optimize=optimize), SimpleNamespace


@pytest.mark.parametrize("real", [False, True])
async def test_a_search_whose_helper_model_fails_is_no_finished_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: bool
) -> None:
    if real:
        pytest.importorskip("gepa")
    else:
        monkeypatch.setattr(prompt_search, "_gepa", stand_in)
    player, model = Player(), Spent()
    search = prompt_search._Search(player, SearchJournal(tmp_path), None, model)  # type: ignore[arg-type]
    with pytest.raises(BudgetSpent, match="used up"):
        await asyncio.to_thread(search.best, {"system_prompt": "Order tea."}, TASKS)
    assert model.asked == 1
    assert player.tried <= 2
    with pytest.raises(BudgetSpent):
        search.evaluate(TASKS, {"system_prompt": "Order tea."})


async def test_a_reflection_reads_of_a_success_that_ran_out_of_turns_as_one(tmp_path: Path) -> None:
    search = prompt_search._Search(Player(), SearchJournal(tmp_path), None, Spent())  # type: ignore[arg-type]
    episodes = [ended(TASKS[0], Reward(raw_reward=1.0, is_success=right), "truncated") for right in (True, False)]
    found = search.make_reflective_dataset({}, SimpleNamespace(trajectories=episodes), ["system_prompt"])
    told = [each["Feedback"] for each in found["system_prompt"]]
    assert [text.split(", ")[1].rstrip(".") for text in told] == ["a success", "no success"]
