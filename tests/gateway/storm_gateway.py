"""A gateway in a process of its own with a scripted engine, which is killed and started again on the same port.

    served    keys of long episodes, whose answers are kept on disk, as `astune gateway --answers` does it
    trained   episodes that workers play, as a training run does it; a life goes on with the tasks that are not finished

Every answer of the engine is a text that no other answer has. What the engine sampled is in `sampled.jsonl` before
anybody sees it, and an episode is in `episodes.jsonl` when it is finished; a line is one write, which no SIGKILL cuts.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rollout_stage import build_stage
from rollout_stage import task as task_of

from astune import Task
from astune.config.schema import AstuneConfig, ProgramConfig
from astune.config.strict import changed
from astune.context_tracker.replay import faults
from astune.engine.base import OnToken, ignore_token
from astune.engine.scripted import ScriptedEngine
from astune.gateway import lease_board
from astune.gateway.answer_store import AnswerStore
from astune.gateway.server import GatewayServer
from astune.renderers import load_renderer
from astune.schema import Completion, Episode, SamplingParams
from astune.workflow import AgentModel, EpisodeModel
from astune.workflow.agent_model import Answering
from astune.workflow.workers import workers_workflow

LEASE_S = 3.0
AT_ONCE = 4
CONTEXT = 4096
ASKED = {"role": "user", "content": "?"}


class Log:
    """A file of lines that survive the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class LoggedEngine(ScriptedEngine):
    """Says a new number in every answer, and writes down what it sampled."""

    def __init__(self, renderer: Any, log: Log) -> None:
        super().__init__(self._reply)
        self._renderer = renderer
        self._log = log
        self._life = time.time_ns()
        self._n = 0

    def _reply(self, *_: Any) -> list[int]:
        self._n += 1
        answer = {"role": "assistant", "content": f"Answer {self._n} of life {self._life}."}
        return self._renderer.answer_ids([ASKED, answer], [])

    async def stream(
        self, prompt_ids: Any, params: SamplingParams, *, session: str, on_token: OnToken = ignore_token
    ) -> Completion:
        cancelled = self.stats().cancelled_tokens
        try:
            completion = await super().stream(prompt_ids, params, session=session, on_token=on_token)
        except asyncio.CancelledError:
            self._log.write(session=session, cancelled=self.stats().cancelled_tokens - cancelled)
            raise
        self._log.write(session=session, tokens=completion.token_ids, logprobs=completion.logprobs)
        return completion


async def serve(renderer: Any, folder: Path, port: int, keys: list[str]) -> None:
    server = GatewayServer(port, store=AnswerStore(folder / "answers"), at_once=False)
    engine = LoggedEngine(renderer, Log(folder / "sampled.jsonl"))
    for key in keys:
        limits = {"max_model_len": CONTEXT, "max_response_length_in_one_turn": 256, "call_timeout_s": 60}
        config = changed(AstuneConfig(), model={"path": "m"}, rollout=limits)
        model = EpisodeModel(engine, renderer, config, session=key, seed=1, temperature=1.0)
        agent = AgentModel(model, agent="a", empty_on_overflow=False, answering=lambda _: Answering("", True))
        agent.served_at(server, key)
    server.serve()
    await asyncio.Event().wait()


class Books:
    """An observer that writes episodes down: what of them is recorded, and what their program was answered."""

    def __init__(self, renderer: Any, log: Log) -> None:
        self._renderer = renderer
        self._log = log

    def on_started(self, episode_id: str, task: Task) -> None: ...

    def on_waits_for(self, episode_id: str, what: str) -> None: ...

    def on_finished(self, episode: Episode) -> None:
        found = list(map(str, faults(episode.forest, self._renderer)))
        said = episode.judge_inputs.get("final_answer")
        self._write(episode, kind="trained", status=episode.status, faults=found, said=said)

    def on_attempt_failed(self, episode: Episode) -> None:
        self._write(episode, kind="dropped", error=episode.error)

    def _write(self, episode: Episode, **more: Any) -> None:
        nodes = [node for node in episode.forest.nodes if node.sampled]
        recorded = {node.content: [node.token_ids[-node.n_sampled :], node.logprobs] for node in nodes}
        assert len(recorded) == len(nodes), "an answer is recorded twice"
        self._log.write(session=episode.episode_id, task=episode.task.task_id, recorded=recorded, **more)


async def train(renderer: Any, folder: Path, port: int, n_tasks: int, life: int) -> None:
    lease_board.LEASE_S = LEASE_S
    path = folder / "episodes.jsonl"
    books = Log(path)
    lines = map(json.loads, path.read_text().splitlines())
    finished = {line["task"] for line in lines if line["kind"] == "trained"}
    tasks = [task_of(f"t{number}") for number in range(n_tasks) if f"t{number}" not in finished]
    engine = LoggedEngine(renderer, Log(folder / "sampled.jsonl"))
    workflow = workers_workflow(ProgramConfig(workers=f"127.0.0.1:{port}"))
    stage = build_stage(
        renderer,
        workflow,
        engine=engine,
        observer=Books(renderer, books),
        max_model_len=CONTEXT,
        max_env_worker=AT_ONCE,
        max_attempts=4,
        episode_timeout_s=AstuneConfig().rollout.episode_timeout_s,
    )
    before = engine.stats()
    groups = await stage.play(tasks, step=life)
    balance = stage.pool.balance(groups, engine.stats() - before)
    books.write(kind="end", difference=balance.difference, task="")


def main() -> None:
    mode, model, folder, port, *rest = sys.argv[1:]
    renderer = load_renderer(Path(model))
    if mode == "served":
        asyncio.run(serve(renderer, Path(folder), int(port), rest))
    else:
        asyncio.run(train(renderer, Path(folder), int(port), *map(int, rest)))


if __name__ == "__main__":
    main()
