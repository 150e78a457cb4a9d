"""Each agent of `tutorial/example_frameworks` plays with its real framework: `make e2e-agents`.

Once with scripted answers, a call of a tool and then an answer, so that each framework's own loop is what runs; and,
for a row of the table in docs/en/any_agent.md, with the small real model, which writes what it likes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from rollout_stage import build_stage
from rollout_stage import task as task_of
from transformers import AutoConfig

from astune.config.schema import AstuneConfig, ProgramConfig, TrainerConfig
from astune.context_tracker.replay import faults
from astune.engine.local.grammar import Grammars
from astune.engine.local.in_process import InProcessEngine
from astune.gateway.live_answers import LiveAnswer
from astune.renderers import Renderer
from astune.sandbox.jail import Jail
from astune.schema import Episode, EpisodeGroup, SandboxError, TokenBalance, TrainingBatch
from astune.trainer.microbatch import pack, split
from astune.trainer.rows import row_metrics
from astune.trainer.samples import weighted
from astune.workflow import AgentModel
from astune.workflow.program import program_workflow

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tutorial" / "example_frameworks"
ENVIRONMENT = ROOT / ".venv-agents"
PYTHON = ENVIRONMENT / "bin" / "python"
ASK = {"role": "user", "content": "Hi"}
CONTEXT = 8192
COLUMNS = (
    *("agent", "episodes", "calls", "streamed", "forks", "tokens recorded", "trained", "rows an episode"),
    *("tokens of rows over recorded", "forwarded over recorded"),
)
EDITS = ["message edited", "message edited"]

pytestmark = pytest.mark.e2e


def tool(name: str, **properties: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = [tool("add", a="integer", b="integer"), tool("final_answer", answer="string"), tool("bash", command="string")]
TOOLS.append(tool("run_shell_command", command="string", is_background="boolean"))


def call(name: str, **given: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(given)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "type": "function", "function": function}]}


def say(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def fields(**given: str) -> dict[str, Any]:
    """An answer as DSPy reads it."""
    return say("\n\n".join([*(f"[[ ## {name} ## ]]\n{text}" for name, text in given.items()), "[[ ## completed ## ]]"]))


class Agent(NamedTuple):
    """An agent, the answers of its scripted model, and why its calls are no single conversation."""

    file: str
    answers: Sequence[dict[str, Any]] = (call("add", a=47, b=16), say("63"))
    forks: Sequence[str] = ()


SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat sum"
AGENTS = (
    Agent("openai_sdk.py"),
    Agent("openai_sdk.mjs"),
    Agent("anthropic_sdk.py"),
    Agent("openai_agents.py"),
    Agent("langgraph_agent.py"),
    Agent("pydantic_ai_agent.py"),
    Agent("mcp_agent.py"),
    Agent("autogen_agent.py"),
    Agent("agentscope2_agent.py"),
    Agent("adk_agent.py"),
    Agent("smolagents_agent.py", [call("add", a=47, b=16), call("final_answer", answer="63")], EDITS[:1]),
    Agent("mini_swe_agent.py", [call("bash", command="expr 47 + 16 > sum"), call("bash", command=SUBMIT)]),
    Agent(
        "dspy_agent.py",
        [
            fields(next_thought="Add.", next_tool_name="add", next_tool_args='{"a": 47, "b": 16}'),
            fields(next_thought="Done.", next_tool_name="finish", next_tool_args="{}"),
            fields(reasoning="The tool said so.", answer="63"),
        ],
        EDITS,
    ),
    Agent("curl_agent.sh", [say("63")]),
    Agent("qwen_code.sh", [call("run_shell_command", command="expr 47 + 16", is_background=False), say("63")]),
)
each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.file)


@pytest.fixture(autouse=True)
def programs_of_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    """npm's programs of the environment."""
    monkeypatch.setenv("PATH", f"{ENVIRONMENT / 'node' / 'node_modules' / '.bin'}:{os.environ['PATH']}")


def command_of(agent: Agent) -> list[str]:
    if agent.file.endswith(".sh"):
        program = "curl" if agent.file == "curl_agent.sh" else "qwen"
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
        return [str(FOLDER / agent.file)]
    if not PYTHON.exists():
        pytest.skip("scripts/make_peer_env.sh agents")
    if agent.file.endswith(".py"):
        return [str(PYTHON), str(FOLDER / agent.file)]
    node = shutil.which("node")
    if node is None or not (ENVIRONMENT / "node" / "node_modules" / "openai").exists():
        pytest.skip("there is no node, or it was not there when .venv-agents was made")
    there = shutil.copy(FOLDER / agent.file, ENVIRONMENT / "node")  # node looks for packages beside the file
    return [node, str(there)]


def play(
    renderer: Any, agent: Agent, *, num_repeat: int = 1, sandboxed: bool = False, **stage_of: Any
) -> tuple[list[Episode], TokenBalance]:
    """Its episodes, none of which failed, and where their tokens went."""
    shown = [str(ENVIRONMENT)] if sandboxed else []
    workflow = program_workflow(ProgramConfig(command=command_of(agent), sandboxed=sandboxed, readable=shown))
    stage = build_stage(renderer, workflow, max_model_len=CONTEXT, episode_timeout_s=300, **stage_of)

    async def step() -> tuple[list[Episode], TokenBalance]:
        before = stage.engine.stats()
        groups = await stage.play([task_of()], num_repeat=num_repeat)
        balance = stage.pool.balance(groups, stage.engine.stats() - before)
        return [*groups[0].episodes, *groups[0].failed_attempts], balance

    episodes, balance = asyncio.run(step())
    for episode in episodes:
        assert episode.error is None, episode.error
        assert not list(faults(episode.forest, renderer))
    assert balance.difference == 0
    return episodes, balance


@each_agent
def test_a_frameworks_agent_uses_its_tool_and_branches_as_it_is_known_to(agent: Agent, renderer: Renderer) -> None:
    replies = [renderer.answer_ids([ASK, answer], TOOLS) for answer in agent.answers]  # type: ignore[attr-defined]
    (episode,), _ = play(renderer, agent, replies=replies)
    assert episode.judge_inputs["final_answer"] == "63"
    assert sum(node.sampled for node in episode.forest.nodes) == len(agent.answers)
    assert [node.fork_cause for node in episode.forest.nodes if node.fork_cause] == list(agent.forks)


STREAMING = (
    "openai_sdk.py",
    "openai_sdk.mjs",
    "anthropic_sdk.py",
    "langgraph_agent.py",
    "agentscope2_agent.py",
    "qwen_code.sh",
)


@pytest.mark.parametrize("file", STREAMING)
def test_a_frameworks_agent_puts_its_call_together_from_pieces(file: str, renderer: Renderer) -> None:
    """Arguments are streamed as they are sampled where an answer that breaks off is an error."""
    agent = next(agent for agent in AGENTS if agent.file == file)
    replies = [renderer.answer_ids([ASK, answer], TOOLS) for answer in agent.answers]  # type: ignore[attr-defined]
    (episode,), _ = play(renderer, agent, replies=replies, malformed_tool_calls="return_error")
    assert episode.judge_inputs["final_answer"] == "63"
    assert [node.fork_cause for node in episode.forest.nodes if node.fork_cause] == []


def test_a_coding_agents_files_stay_between_its_commands_in_the_sandbox(renderer: Renderer, tmp_path: Path) -> None:
    try:
        Jail([], 64).try_out()
    except SandboxError as cause:
        pytest.skip(f"this machine has no {cause.message}")
    agent = next(agent for agent in AGENTS if agent.file == "mini_swe_agent.py")
    (tmp_path / "secret").write_text("treasure")
    answers = (agent.answers[0], call("bash", command=f"cat {tmp_path}/secret >> sum 2>&1; {SUBMIT}"))
    replies = [renderer.answer_ids([ASK, answer], TOOLS) for answer in answers]  # type: ignore[attr-defined]
    (episode,), _ = play(renderer, agent, replies=replies, sandboxed=True)
    its_sum, refused = episode.judge_inputs["final_answer"].splitlines()
    assert its_sum == "63"
    assert "No such file" in refused


def test_frameworks_in_the_trainers_process_stream_without_a_socket(smol_folder: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("scripts/make_peer_env.sh agents")
    beside = [ROOT, ROOT / "tests" / "rollout", sysconfig.get_paths()["purelib"]]
    program = Path(__file__).with_name("in_process_agents.py")
    ended = subprocess.run(  # its own packages come first, ours after them
        [PYTHON, program, smol_folder, *beside], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    played = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [each["agent"] for each in played] == ["openai_agents", "langgraph", "pydantic_ai"]
    for each in played:
        assert each["error"] is None, each
        assert "".join(each["pieces"]) == "Tom has 63 pens now, since 47 and 16 are 63."
        assert len(each["pieces"]) > 10, "the answer came as it was sampled"
        assert (each["answers"], each["forks"], each["faults"], each["balance"]) == (2, [], [], 0)


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Its rows go between the marks in the pages that `ASTUNE_TABLE` names."""
    rows = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    yield rows
    for page in os.environ.get("ASTUNE_TABLE", "").split():
        path = ROOT / page
        before, _, rest = path.read_text().partition("<!-- agents -->\n")
        path.write_text(
            before + "<!-- agents -->\n" + "\n".join(rows) + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]
        )


@pytest.fixture(scope="module")
def engine(smol_folder: Path) -> Iterator[InProcessEngine]:
    config = AstuneConfig.model_validate({"engine": {"kv_cache_gb": 1.0, "max_batch_size": 4}})
    engine = InProcessEngine.load(smol_folder, model=config.model, engine=config.engine, max_model_len=CONTEXT)
    yield engine
    asyncio.run(engine.aclose())


def costs_of(episodes: list[Episode], model: Path) -> tuple[dict[str, float], dict[str, float]]:
    """`row_metrics` of a training step on the episodes: as rows of their own, and as the trainer lays them out."""
    batch = TrainingBatch(1, [EpisodeGroup(episodes[0].task, episodes)], [[1.0, -1.0]])
    timelines = weighted(batch.groups, batch.advantages, "episode")
    grammars = Grammars(model, AutoConfig.from_pretrained(model).vocab_size)
    parts = split(timelines, TrainerConfig().tokens_per_microbatch)
    forwarded = sum(len(pack(part, torch.device("cpu"), grammars).token_ids_T) for part in parts)
    return row_metrics(batch, sum(len(one.input_ids) for one in timelines)), row_metrics(batch, forwarded)


@each_agent
def test_with_the_small_real_model_every_token_is_accounted_for(
    agent: Agent,
    engine: InProcessEngine,
    renderer: Any,
    table: list[str],
    smol_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streamed = Counter[bool]()
    sample = AgentModel.sample

    async def counted(self: AgentModel, request: Any, live: LiveAnswer | None) -> Any:
        streamed[live is not None] += 1
        return await sample(self, request, live)

    monkeypatch.setattr(AgentModel, "sample", counted)
    episodes, balance = play(renderer, agent, engine=engine, num_repeat=2, max_response_length_in_one_turn=24)
    nodes = [node for episode in episodes for node in episode.forest.nodes]
    forks = Counter(node.fork_cause for node in nodes if node.fork_cause)
    apart, laid_out = costs_of(episodes, smol_folder)
    cells = [
        f"`{agent.file}`",
        len(episodes),
        sum(node.sampled for node in nodes),
        "yes" if streamed[True] else "no",
        ", ".join(f"{n} {cause}" for cause, n in forks.items()) or "none",
        sum(len(node.token_ids) for node in nodes),
        balance.trained,
        f"{apart['rows_per_episode']:g}",
        f"{apart['forwarded_over_unique']:.2f}",
        f"{laid_out['forwarded_over_unique']:.2f}",
    ]
    assert laid_out["forwarded_over_unique"] <= 1.2
    assert len(episodes) == 2
    assert balance.trained == sum(node.n_sampled for node in nodes)
    table.append("| " + " | ".join(map(str, cells)) + " |")
