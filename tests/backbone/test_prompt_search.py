"""A search for prompts whose helper model fails or proposes what cannot be played, with the real GEPA where it is
installed and one like it elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rollout_stage import HELLO, Watcher

from astune.backbone import prompt_search
from astune.backbone.search_journal import SearchJournal
from astune.config.schema import AstuneConfig
from astune.engine.scripted import ScriptedEngine
from astune.helper_model import Usage
from astune.renderers import Renderer
from astune.schema import BudgetSpent, Episode, Forest, Reward, Task, WorkflowError

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


WORKFLOW = """
from astune import Workflow, WorkflowOutput
from astune.schema import EngineError


class Named(Workflow):
    def __init__(self, config, *, system_prompt):
        super().__init__(config)
        self.prompt = system_prompt

    async def execute(self, task, proxy):
        if "dark" in self.prompt:
            raise EngineError("the engine is away")
        system = {"role": "system", "content": self.prompt.format(name="Bo")}
        await proxy.achat([system, *task.init_messages])
        return WorkflowOutput(reward=-1.0 if "sour" in self.prompt else 1.0, is_success=True)
"""
START = {"system_prompt": "You are {name}, be brief."}
UNPLAYABLE = {
    "ContextOverflow": "Think carefully. " * 200,
    "KeyError": 'You are {name}. Answer as JSON: {"answer": ...}',
}


class Recorded(Watcher):
    """A run's episodes, as its record has them."""

    def episodes(self, *, step: int, split: str) -> list[Episode]:
        return [each for each in (*self.finished, *self.failed) if (each.step, each.split) == (step, split)]


class Proposes:
    """A helper model that proposes one prompt after another."""

    def __init__(self, *prompts: str) -> None:
        self.used = Usage()
        self.prompts = list(prompts)
        self.asked: list[str] = []

    async def ask(self, instruction: str, question: str) -> str:
        self.asked.append(question)
        return self.prompts[len(self.asked) - 1]


class Search:
    """A search of a run in `folder`, which each call of `best` resumes."""

    def __init__(self, folder: Path, renderer: Renderer, *proposed: str, **sections: Any) -> None:
        (folder / "named.py").write_text(WORKFLOW)
        self.folder, self.renderer, self.sections = folder, renderer, sections
        self.helper, self.recorded = Proposes(*proposed), Recorded()
        self.evaluations: list[Any] = []
        self.engine = ScriptedEngine(lambda *_: HELLO)

    async def best(self, monkeypatch: pytest.MonkeyPatch, start: dict[str, str]) -> dict[str, str]:
        monkeypatch.setattr(prompt_search, "_gepa", lambda: (SimpleNamespace(optimize=self.optimize), SimpleNamespace))
        sections = {
            "rollout": {
                "workflow": "named.py->Named",
                "max_model_len": 256,
                "max_response_length_in_one_turn": 16,
                "max_attempts": 1,
                "params": start,
            },
            "prompt_search": {"validation_tasks": 4, "max_episodes": 60},
        }
        config = AstuneConfig.model_validate(sections | self.sections)
        model = SimpleNamespace(engine=self.engine, renderer=self.renderer, config=config)
        ledger = SimpleNamespace(step=0, record_untrained=lambda *_, **__: None)
        ledger.begin_untrained = lambda step: setattr(ledger, "step", step)
        parts: Any = SimpleNamespace(judge=None)
        observer: Any = SimpleNamespace(on_phase=lambda *_: None)
        loop = asyncio.get_running_loop()
        player = prompt_search._Player(config, parts, model, self.recorded, ledger, observer, self.folder, loop)  # type: ignore[arg-type]
        search = prompt_search._Search(player, SearchJournal(self.folder), self.recorded, self.helper)  # type: ignore[arg-type]
        return await asyncio.to_thread(search.best, start, TASKS)

    def optimize(self, *, adapter: Any, seed_candidate: Any, reflection_lm: Any, valset: Any, **more: Any) -> Any:
        self.evaluations = [adapter.evaluate(valset, seed_candidate, capture_traces=True)]
        for _ in self.helper.prompts:
            read = adapter.make_reflective_dataset({}, self.evaluations[-1], ["system_prompt"])
            text = reflection_lm(str(read))
            self.evaluations.append(adapter.evaluate(valset, {"system_prompt": text}, capture_traces=True))
        return SimpleNamespace(best_candidate=seed_candidate)


@pytest.mark.parametrize("failure", UNPLAYABLE)
async def test_a_proposed_prompt_that_cannot_be_played_scores_lowest_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renderer: Renderer, failure: str
) -> None:
    search = Search(tmp_path, renderer, UNPLAYABLE[failure], "Be kind.", "Be sour.", UNPLAYABLE[failure])
    assert await search.best(monkeypatch, START) == START
    scores = [evaluation.scores for evaluation in search.evaluations]
    assert scores == [[1.0] * 4, [0.0] * 4, [1.0] * 4, [-1.0] * 4, [-1.0] * 4]
    assert "It could not be played: " in search.helper.asked[1]
    assert failure in search.helper.asked[1]
    assert "could not be played" not in "".join(search.helper.asked[:1] + search.helper.asked[2:])

    asked, played = len(search.helper.asked), len(search.recorded.started)
    assert await search.best(monkeypatch, START) == START
    assert (len(search.helper.asked), len(search.recorded.started)) == (asked, played), "all of it is in the journal"
    assert [evaluation.scores for evaluation in search.evaluations] == scores


async def test_a_prompt_of_the_start_that_cannot_be_played_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renderer: Renderer
) -> None:
    search = Search(tmp_path, renderer, "Be kind.")
    with pytest.raises(WorkflowError, match=r"cannot be compared.*KeyError"):
        await search.best(monkeypatch, {"system_prompt": UNPLAYABLE["KeyError"]})
    assert search.helper.asked == []
    assert not (tmp_path / "search.jsonl").exists()


async def test_an_outage_is_no_score_of_a_proposed_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renderer: Renderer
) -> None:
    search = Search(tmp_path, renderer, "It is dark.")
    for _ in range(2):
        with pytest.raises(WorkflowError, match=r"cannot be compared.*EngineError: the engine is away"):
            await search.best(monkeypatch, START)
        played = len(search.recorded.started)
    assert len(search.helper.asked) == 1
    assert played == 3 * 4, "the start once, and what was proposed each time"


async def test_a_search_with_the_league_of_a_training_plays_present_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renderer: Renderer
) -> None:
    models = {"agent": {"lora": {"rank": 2}}, "other": {"lora": {"rank": 2}}}
    search = Search(tmp_path, renderer, "Be kind.", models=models, trainer={"league": {"share": 1.0}})
    asked = set[str]()
    generate = search.engine.generate

    async def noted(prompt_ids: Any, params: Any, **more: Any) -> Any:
        asked.add(params.policy)
        return await generate(prompt_ids, params, **more)

    monkeypatch.setattr(search.engine, "generate", noted)
    await search.best(monkeypatch, START)
    assert asked == {"agent"}
