"""What a configuration names as its workflow and its judge: classes and functions, and their settings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astune.config.schema import AstuneConfig
from astune.schema import ConfigError, JudgeError, Task
from astune.task_judge import load_judge
from astune.workflow.loading import load_workflow

AGENTS = """
from astune import JudgeBase, Workflow

class Shouting(Workflow):
    def __init__(self, config, *, loud):
        super().__init__(config)
        self.loud = loud

    async def execute(self, task, proxy): ...

class Plain(Workflow):
    async def execute(self, task, proxy): ...

class Closed(Workflow):
    def __init__(self):
        self.open = False

    async def execute(self, task, proxy): ...

def sync(task, proxy, n=1): ...

def nothing(): ...

def judge(task, response, *, scale=1.0): ...

class Kind(JudgeBase):
    def compute_reward(self, inputs): return 1.0, True

class Sure(JudgeBase):
    def compute_reward(self, inputs): return 0.5, "no"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents.py").write_text(AGENTS)


def config(workflow: Any, judge: Any = "", **params: Any) -> AstuneConfig:
    own = {"rollout": {"workflow": workflow, "params": params}}
    return AstuneConfig.model_validate({**own, "task_judge": {"judge_protocol": judge, "params": params}})


@pytest.mark.parametrize(("name", "params"), [("Shouting", {"loud": True}), ("Plain", {}), ("sync", {"n": 3})])
def test_classes_and_functions_get_their_settings(name: str, params: dict[str, Any]):
    given = config(f"agents.py->{name}", **params)
    workflow = load_workflow(given)
    assert workflow.__name__ == name
    assert workflow.is_async() == (name != "sync")
    workflow(given, **params)


@pytest.mark.parametrize(
    ("workflow", "params", "error", "hint"),
    [
        (
            "agents.py->Shouting",
            {"loud": 1, "laud": 2},
            "rollout.params.laud: Shouting accepts no argument laud",
            "loud",
        ),
        ("agents.py->Shouting", {}, "rollout.params: Shouting requires loud", "set rollout.params.loud"),
        ("agents.py->Plain", {"n": 1}, "rollout.params.n: Plain accepts no argument n", "it accepts none"),
        ("agents.py->Closed", {}, "Closed() does not accept the configuration", "def __init__(self, config)"),
        ("agents.py->sync", {"m": 1}, "rollout.params.m: sync accepts no argument m", "it accepts n"),
        ("agents.py->nothing", {}, "nothing() is not a workflow", "async def nothing(task, proxy)"),
        ({"command": ["true"]}, {"n": 1}, "rollout.params are arguments of a class or a function", "command"),
    ],
)
def test_settings_that_nobody_takes_are_refused(workflow: Any, params: dict[str, Any], error: str, hint: str):
    with pytest.raises(ConfigError) as caught:
        load_workflow(config(workflow, **params))
    assert error in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_a_cluster_runs_agents_that_are_programs_and_its_processes_need_no_token_of_workers(
    backbone: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("ASTUNE_WORKER_TOKEN", raising=False)
    agents = {"command": ["true"]}, {"url": "http://127.0.0.1:9000/run"}, {"workers": "0.0.0.0:8183"}
    on_cluster = [config(agent).model_copy(update={"backbone": backbone}) for agent in agents]
    loaded = [load_workflow(each, workers_connect_here=False).__name__ for each in on_cluster]
    assert loaded == ["Program", "AgentServer", "Workers"]
    with pytest.raises(ConfigError, match="ASTUNE_WORKER_TOKEN is not a secret"):
        load_workflow(on_cluster[2])


def test_a_judge_may_be_a_function_with_settings():
    assert load_judge(config("", "agents.py->judge", scale=2.0)) is not None
    with pytest.raises(ConfigError, match=r"task_judge\.params\.scal: judge accepts no argument scal"):
        load_judge(config("", "agents.py->judge", scal=2.0))
    with pytest.raises(ConfigError, match="is no judge"):
        load_judge(config("", "agents.py->sync"))


async def test_a_judge_function_that_waits_does_not_block_other_episodes_and_names_itself(tmp_path: Path):
    """It runs in a thread, and its result has to be a number; a list of judges checks each one's result, too."""
    (tmp_path / "scores.py").write_text(
        "import threading\n"
        "def thread(task, response): return float(threading.current_thread() is threading.main_thread())\n"
        "def words(task, response): return '0.7'\n"
        "async def pair(task, response): return 0.7, True\n"
    )
    core = SimpleNamespace(task=Task(task_id="sum-1", main_query="q"))
    judges: dict[str, Any] = {
        name: load_judge(config("", f"scores.py->{name}")) for name in ("thread", "words", "pair")
    }
    assert (await judges["thread"].compute_reward({"task_core_arg": core})).raw_reward == 0.0
    both: Any = load_judge(config("", [{"judge": "agents.py->Kind"}, {"judge": "agents.py->Sure"}]))
    with pytest.raises(JudgeError, match=r"judge Sure on task sum-1 returned \(0\.5, 'no'\)"):
        await both.compute_reward({"task_core_arg": core})
    for name, returned in (("words", "'0.7'"), ("pair", "(0.7, True)")):
        with pytest.raises(JudgeError) as caught:
            await judges[name].compute_reward({"task_core_arg": core})
        assert caught.value.message == f"judge {name} on task sum-1 returned {returned}"
