"""The agents, environments and judges of the documentation, played by a scripted model as their page says."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from shown_files import ROOT, blocks, write_files

from astune.config import load_config
from astune.config.schema import AstuneConfig
from astune.engine.scripted import ScriptedEngine
from astune.renderers import Renderer
from astune.rollout import RolloutPool
from astune.schema import Episode, Task
from astune.task_judge import load_judge
from astune.task_reader import open_task_reader
from astune.workflow.loading import load_workflow

DOCS = ROOT / "docs" / "en"
MATH_JUDGE = "astune.task_judge.math_answer_as_judge->MathAnswerAsJudge"

Play = Callable[..., Awaitable[Episode]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every file that the pages show."""
    monkeypatch.chdir(tmp_path)
    for page in (ROOT / "README.md", *DOCS.glob("*.md")):
        write_files(page, tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def encode(tokenizer: Any) -> Callable[[str], list[int]]:
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture
def play(renderer: Renderer, encode: Callable[[str], list[int]], folder: Path) -> Play:

    async def run(
        replies: list[str], *, workflow: str = "", judge: str = "", conf: str = "", query: str = "Hi", **task: Any
    ) -> Episode:
        given = {"rollout": {"workflow": workflow, "max_attempts": 1}, "task_judge": {"judge_protocol": judge}}
        config = load_config(folder / conf) if conf else AstuneConfig.model_validate(given)
        workflow_class = load_workflow(config)
        engine = ScriptedEngine([encode(reply) for reply in replies])
        pool = RolloutPool(engine, renderer, workflow_class, load_judge(config), config)
        asked = Task(task_id="t", main_query=query, **task)
        [group] = await pool.run_groups([asked], step=1, split="train", num_repeat=1, temperature=1.0)
        return [*group.episodes, *group.failed_attempts][0]

    return run


async def test_the_readmes_agent_asks_again_where_the_form_is_wrong(play):
    episode = await play(["seven", r"\boxed{7}"], conf="my_agent.yaml", metadata={"answer": "7"})
    assert (episode.status, episode.raw_reward, episode.metrics["turns"]) == ("success", 1.0, 2)
    episode = await play([r"\boxed{8}"], conf="my_agent.yaml", metadata={"answer": "7"})
    assert (episode.status, episode.raw_reward, episode.metrics["turns"]) == ("failed", 0.0, 1)


async def test_the_agentscope_agent_is_judged_by_its_final_answer(play):
    pytest.importorskip("agentscope")
    episode = await play(
        [r"so \boxed{64}"], workflow="math_agent.py->MathAgent", judge=MATH_JUDGE, metadata={"answer": "#### 64"}
    )
    assert (episode.status, episode.raw_reward) == ("success", 1.0)


async def test_the_agent_with_tools_calls_one_and_reads_its_result(play):
    pytest.importorskip("agentscope")
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 7, "b": 8}}\n</tool_call>'
    episode = await play(
        [call, r"so \boxed{56}"], workflow="tools_agent.py->ToolAgent", judge=MATH_JUDGE, metadata={"answer": "56"}
    )
    assert (episode.status, episode.raw_reward) == ("success", 1.0), episode.error
    assert [(node.role, node.content) for node in episode.forest.nodes if node.role == "tool"] == [("tool", "56")]


@pytest.mark.parametrize("workflow", ["coding_agent.py->CodingAgent", "code_block_agent.py->CodeBlockAgent"])
async def test_the_agents_that_write_code_read_what_it_printed(play, workflow):
    pytest.importorskip("agentscope")
    code = "print(open('/etc/passwd').read() if 0 else 6 * 7)"
    block = f"Let me compute.\n```python\n{code}\n```"
    arguments = json.dumps({"name": "execute_python_code", "arguments": {"code": code}})
    call = block if "block" in workflow else f"<tool_call>\n{arguments}\n</tool_call>"
    episode = await play([call, r"so \boxed{42}"], workflow=workflow, judge=MATH_JUDGE, metadata={"answer": "42"})
    assert (episode.status, episode.raw_reward) == ("success", 1.0), episode.error
    read = [str(node.content) for node in episode.forest.nodes if not node.sampled]
    assert any("<returncode>0</returncode><stdout>42\n</stdout><stderr></stderr>" in text for text in read)


async def test_the_plain_agents_run(play):
    episode = await play(["4"], workflow="plain.py->Solver", judge=MATH_JUDGE, metadata={"answer": "4"})
    assert episode.status == "success"
    episode = await play(["one two three"], workflow="plain_sync.py->ShortAnswer")
    assert (episode.raw_reward, episode.metrics["words"]) == (0.25, 3)


async def test_the_function_has_its_settings(play):
    episode = await play(["2 and 5"], conf="dice.yaml")
    asked = episode.forest.nodes[0].content
    again = (await play(["no"], conf="dice.yaml")).forest.nodes[0].content
    assert asked == again, "all episodes of a task throw the same dice"
    assert asked.count(",") == 2
    assert (episode.status, episode.metrics["guessed"]) == ("failed", 0)
    total = str(sum(int(eye) for eye in asked.partition(": ")[2].partition(".")[0].split(",")))
    assert (await play([total], conf="dice.yaml")).status == "success"


async def test_the_functions_of_agentscope_tuner_are_played_and_judged(play):
    pytest.importorskip("agentscope")
    pytest.importorskip("dspy", reason="agentscope.tuner imports it")
    episode = await play(["It is 4"], conf="tuner.yaml", metadata={"answer": "4"})
    assert (episode.status, episode.raw_reward, episode.metrics["letters"]) == ("success", 1.0, 7)
    assert episode.judge_inputs["final_answer"] == "It is 4"


async def test_the_structured_answer_is_read_by_its_fields(play):
    answer = '{"reason": "It is written there.", "answer": "yes"}'
    episode = await play([answer], workflow="structured.py->Reader", judge=MATH_JUDGE, metadata={"answer": "yes"})
    assert episode.judge_inputs == {"final_answer": "yes"}
    [constraint] = [node.constraint for node in episode.forest.nodes if node.sampled]
    assert constraint.grammar.kind == "json_schema"


async def test_the_guessing_game_is_played_as_its_page_says(play):
    [shown] = blocks(DOCS / "workflow.md", "json")
    task = json.loads(shown.text)
    game = {"conf": "guess.yaml", "query": task.pop("main_query"), **task}
    won = await play(["10", "20", "13"], **game)
    assert (won.status, won.raw_reward, won.metrics["env_steps"]) == ("success", 1.0, 3)
    assert [m.content for m in won.forest.path(won.forest.nodes[-1].node_id)][1:] == [
        "10",
        "higher",
        "20",
        "lower",
        "13",
    ]
    assert (await play(["no idea"], **game)).status == "failed"
    assert (await play(["1"] * 6, **game)).status == "truncated"


async def test_of_two_agents_only_the_target_is_trained(play):
    episode = await play(
        ["a draft", "too short", "4"], workflow="pair.py->Pair", judge=MATH_JUDGE, metadata={"answer": "4"}
    )
    assert episode.status == "success"
    assert [(node.agent, node.trainable) for node in episode.forest.nodes if node.sampled] == [
        ("writer", True),
        ("critic", False),
        ("writer", True),
    ]


async def test_the_judges_judge(play):
    length = {"workflow": "plain.py->Solver", "judge": "length_judge.py->LengthJudge", "metadata": {"limit": 4}}
    assert (await play(["four"], **length)).raw_reward == 1.0
    assert (await play(["too long"], **length)).raw_reward == 0.5
    strict = {"workflow": "plain.py->Solver", "judge": "strict_judge.py->StrictJudge"}
    assert (await play(["yes"], **strict, metadata={"expected": "yes"})).status == "success"
    failed = await play(["yes"], **strict)
    assert failed.status == "error"
    assert "add it to the task's metadata" in (failed.error or "")


async def test_the_async_judge_asks_a_server(play, folder):
    class Scores(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps({"score": 0.75 if asked == {"id": "t", "text": "yes"} else 0.0}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Scores)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    file = folder / "remote_judge.py"
    file.write_text(file.read_text().replace("127.0.0.1:9000", f"127.0.0.1:{server.server_port}"))
    try:
        episode = await play(["yes"], conf="judged.yaml")
    finally:
        server.shutdown()
        server.server_close()
    assert (episode.status, episode.raw_reward) == ("success", 0.75)


def test_the_shown_reader_and_the_shown_task_lines_are_read(folder):
    reader = open_task_reader(load_config(folder / "squares.yaml").task_reader, base_dir=folder)
    splits = reader.read()
    assert len(splits.training) == 80
    assert splits.validation[0].main_query == "What is 5 times 5?"
    [shown] = blocks(DOCS / "tasks.md", "json")
    (folder / "lines.jsonl").write_text(shown.text)
    lines = AstuneConfig.model_validate({"task_reader": {"jsonl": {"training": {"file_path": "lines.jsonl"}}}})
    assert len(open_task_reader(lines.task_reader).read().training) == 2
