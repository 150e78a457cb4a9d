"""Runs to look at, written by the real writers, and the viewer served over real HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from astune.runs import RunDirectory
from astune.schema import Constraint, Episode, Forest, Grammar, MessageNode, Reward, Split, Task, Vocabulary
from astune.serving.server import listen
from astune.viewer.server import ViewerServer

END = 256
BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), b"<|end|>"], frozenset([END]))
"""Every byte is a token: a Chinese character is three of them."""
CONFIG = "astune:\n  backbone: local\n  model:\n    path: builtin:smollm2-135m\n"

TALKERS = '''
from astune import Workflow, WorkflowOutput

class Talkers(Workflow):
    """Asked twice, once with an edited question; a helper that is not trained is asked within a form."""

    trainable_targets = ("solver",)

    async def execute(self, task, proxy):
        solver, helper = proxy.as_agentscope_model("solver"), proxy.as_agentscope_model("helper")
        messages = [*proxy.init_messages]
        first = await solver.achat(messages)
        messages += [first, {"role": "user", "content": "And again, 再来一次?"}]
        await solver.achat(messages)
        messages[-1] = {"role": "user", "content": "And AGAIN?"}
        await solver.achat(messages)
        form = {"type": "regex", "regex": "yes|no"}
        await helper.achat([{"role": "user", "content": "Say yes or no."}], response_format=form)
        return WorkflowOutput(reward=float(proxy.repeat % 2), is_success=proxy.repeat % 2 == 1)
'''
ODD = "Is 100%_\"' the same as <script>document.title='owned'</script> 数学 🙂?"
"""A question with quotation marks, markup, Chinese and an emoji."""


def require_shown(run: Path) -> None:
    """The viewer lists the run without complaint, and opens the first of its episodes with all tokens."""
    with serving(run) as client:
        (told,) = get(client, "runs")
        assert told["problems"] == []
        rows = get(client, "episodes", run="")["rows"]
        assert len(rows) == told["episodes"] > 0
        tokens = get(client, "tokens", run="", id=rows[0]["episode_id"], timeline=0)
        assert tokens["length"] == len(tokens["ids"]) > 0


def read_node(node_id: int, parent: int | None, text: str, *, role: str = "user", **more: Any) -> MessageNode:
    return MessageNode(node_id, parent, role, text, list(text.encode()), more.pop("agent", "solver"), **more)


def said_node(
    node_id: int, parent: int, text: str, *, agent: str = "solver", trainable: bool = True, **more: Any
) -> MessageNode:
    """Its last token is the end of the answer; token i has the log-probability -i/10."""
    sampled = [*text.encode(), END]
    return MessageNode(
        node_id,
        parent,
        "assistant",
        text,
        [ord(">"), *sampled],
        agent,
        logprobs=[-number / 10 for number in range(len(sampled))],
        finish_reason="stop",
        weights_version=0,
        trainable=trainable,
        **more,
    )


def make_episode(
    number: int = 0,
    *,
    question: str = "What is 1 + 1?",
    answer: str = "It is 2.",
    reward: float | None = 1.0,
    step: int = 1,
    split: Split = "train",
    error: str | None = None,
    nodes: list[MessageNode] | None = None,
    task: str | None = None,
    status: str | None = None,
    **more: Any,
) -> Episode:
    """A question and its answer; `number` is the repeat within its group."""
    nodes = nodes or [read_node(0, None, question), said_node(1, 0, answer)]
    task = task or f"task-{step}"
    failed = "error" if error is not None else ("success" if reward else "failed")
    return Episode(
        episode_id=f"{split}-{step:06d}-{task}-{number:03d}-1",
        task=Task(task_id=task, main_query=question, metadata={"answer": "2"}),
        split=split,
        step=step,
        repeat=number,
        attempt=1,
        seed=number,
        forest=Forest(nodes),
        status=status or failed,  # type: ignore[arg-type]
        reward=None if error is not None or reward is None else Reward(raw_reward=reward, is_success=reward > 0.5),
        error=error,
        timings={"total": 0.5 + number},
        metrics={"turns": 1.0},
        judge_inputs={"final_answer": answer},
        **more,
    )


def branching_episode() -> Episode:
    """The solver answers twice after an edit, a helper that is not trained joins in, and one answer had a form."""
    form = Constraint(Grammar("regex", "(yes|no)"), (END,))
    return make_episode(
        nodes=[
            read_node(
                0, None, "Solve 漢字 🙂.", role="system", tools=[{"type": "function", "function": {"name": "add"}}]
            ),
            said_node(1, 0, "first", reasoning="Let me think."),
            read_node(2, 1, "and then?"),
            said_node(3, 2, "second"),
            read_node(4, 1, "and THEN?", fork_cause="message edited"),
            said_node(5, 4, "yes", constraint=form),
            read_node(6, 0, "help", agent="helper", fork_cause="another agent"),
            said_node(7, 6, "helped", agent="helper", trainable=False),
        ],
        targets={"helper": "assistant"},
    )


@contextmanager
def writing(
    record_dir: Path, experiment: str = "demo", vocabulary: Vocabulary | None = BYTES
) -> Iterator[RunDirectory]:
    """A run that goes on as long as the block; then it is finished."""
    with RunDirectory.create(record_dir, experiment) as run:
        run.save_config(CONFIG)
        if vocabulary is not None:
            run.save_vocabulary(vocabulary)
        yield run
        run.finish("finished")


def write_run(record_dir: Path, episodes: list[Episode], experiment: str = "demo", **more: Any) -> Path:
    """A finished run of these episodes, with a line of metrics for each step of training."""
    with writing(record_dir, experiment, **more) as run, run.open_episodes() as store, run.open_metrics() as metrics:
        for episode in episodes:
            store.append(episode, [0.25])
            store.annotate_logprobs(episode.episode_id, own_logprobs(episode))
        for step in sorted({episode.step for episode in episodes if episode.split == "train"}):
            metrics.append(step, "train", {"reward/mean": step / 10, "train/lr": float("nan")})
        return run.path


def own_logprobs(episode: Episode) -> np.ndarray:
    """A little less than the engine's; unknown for messages that are not trained."""
    parts = [
        np.asarray(node.logprobs, np.float32) - (0.01 if node.trainable else np.nan)
        for node in episode.forest.nodes
        if node.logprobs is not None
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


@contextmanager
def serving(
    path: Path, *, host: str = "127.0.0.1", token: str | None = None, store: Path | None = None
) -> Iterator[httpx.Client]:
    """The viewer of a folder, and a client on this machine that asks it."""
    ready = threading.Event()
    server = ViewerServer(path, host, token, lambda _: ready.set(), store=store)
    listening = listen(host, 0)
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        assert ready.wait(30)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def get(client: httpx.Client, name: str, expected: int = 200, /, **parameters: Any) -> Any:
    """The JSON answer of `/api/NAME`."""
    given = {key: value for key, value in parameters.items() if value is not None}
    answer = client.get(f"/api/{name}", params=given)
    assert answer.status_code == expected, answer.text
    return answer.json()
