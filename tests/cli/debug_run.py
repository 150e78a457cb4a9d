"""A debug run in this process, whose model is a server that gives one answer as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from token_server import TokenServer, listening

AGENT = """
from astune import Workflow, WorkflowOutput

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "multiply")]


class Agent(Workflow):
    async def execute(self, task, proxy):
        answer = await proxy.achat([{"role": "user", "content": task.main_query}], tools=TOOLS)
        if task.metadata["fails"]:
            raise ValueError(task.main_query)
        return WorkflowOutput(reward=1.0)
"""
CONFIG = """
astune:
  rollout: {workflow: agent.py->Agent}
  task_reader: {jsonl: {training: {file_path: tasks.jsonl}}}
  engine: {type: openai, model: any, base_url: "%s/v1"}
"""


def debugged(folder: Path, astune: Callable[..., tuple[int, str, str]], *, question: str, answer: str) -> str:
    """What is printed of an episode that ends well and of one that fails, which are asked and answered alike."""
    (folder / "agent.py").write_text(AGENT)
    tasks = [
        {"task_id": f"{fails} {question}", "main_query": question, "metadata": {"fails": fails}}
        for fails in (False, True)
    ]
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    with listening(TokenServer(None, said=[{"content": answer} for _ in range(9)])) as server:
        (folder / "agent.yaml").write_text(CONFIG % server.url)
        words = ("--set", "rollout.max_attempts=1", "--set", f"record_dir={folder}")
        status, out, err = astune("--conf", str(folder / "agent.yaml"), "--backbone", "debug", *words)
    assert status == 0, out + err
    return out
