"""A run whose episodes hold what a page must get right: branches, two agents, markup, parts of characters, length.

Its vocabulary are the 256 bytes, so a text's tokens are its UTF-8 bytes.
"""

from __future__ import annotations

import time
from pathlib import Path

from astune.runs import RunDirectory
from astune.schema import Episode, Forest, MessageNode, Reward, Task, Vocabulary

MARKUP = "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'>"
CHINESE = "你好，世界 🙂"
LONG_TOKENS = 100_000


def write_staged_run(record: Path) -> Path:
    """A finished run of the experiment `staged` in the folder `record`; returns its folder."""
    with RunDirectory.create(record, "staged") as run:
        run.save_config("astune:\n  backbone: local\n  model: {path: a-model-of-bytes}\n")
        run.save_vocabulary(Vocabulary([bytes([byte]) for byte in range(256)]))
        with run.open_episodes() as store:
            for repeat, episode in enumerate([_forked(), _markup(), _long(), _failed()]):
                store.append(_recorded(episode, repeat), [0.25])
        run.finish("finished")
        return run.path


def _recorded(episode: Episode, repeat: int) -> Episode:
    episode.timings = {"model": 0.5, "total": 0.7}
    episode.repeat = repeat
    return episode


def _episode(name: str, nodes: list[MessageNode], *, reward: float | None = 0.5, error: str | None = None) -> Episode:
    return Episode(
        episode_id=f"train-1-{name}-0-1",
        task=Task(task_id=name, main_query="What is it?"),
        split="train",
        step=1,
        repeat=0,
        attempt=1,
        seed=0,
        forest=Forest(nodes),
        status="error" if error else "failed",
        reward=Reward(raw_reward=reward, is_success=False) if reward is not None else None,
        error=error,
        judge_inputs={"final_answer": MARKUP},
    )


def _node(at: int, parent: int | None, role: str, text: str, *, sampled: bool = False, **more: object) -> MessageNode:
    ids = list(f"<{role}>{text}".encode())
    said = len(text.encode()) if sampled else 0
    given = {"agent": "writer", "trainable": sampled, "logprobs": [-0.25] * said if sampled else None} | more
    if sampled:
        given |= {"finish_reason": "stop", "weights_version": 3}
    return MessageNode(at, parent, role, text, ids, **given)  # type: ignore[arg-type]


def _forked() -> Episode:
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "tree", "n": 3}'}}
    return _episode(
        "forked",
        [
            _node(0, None, "system", "Write a story together."),
            _node(1, 0, "user", "Begin."),
            _node(
                2, 1, "assistant", "Once upon a time", sampled=True, reasoning="A story begins so.", tool_calls=[call]
            ),
            _node(3, 2, "tool", '{"meaning": ["a plant"]}', tool_call_id="c1"),
            _node(4, 3, "assistant", "there was a tree.", sampled=True),
            _node(5, 1, "assistant", "It was night", sampled=True, fork_cause="sampled again"),
            _node(6, 0, "user", "Judge it.", agent="critic", fork_cause="another agent"),
            _node(7, 6, "assistant", "Good enough", sampled=True, agent="critic", trainable=False),
        ],
        reward=0.75,
    )


def _markup() -> Episode:
    return _episode(
        "markup <b>bold</b>",
        [
            _node(0, None, "user", MARKUP, agent=f"agent {MARKUP}"),
            _node(1, 0, "assistant", f"{CHINESE} {MARKUP}", sampled=True, reasoning=MARKUP),
        ],
    )


def _long() -> Episode:
    line = b"The quick brown fox jumps over the lazy dog, again and again.\n"
    text = (line * (LONG_TOKENS // len(line) + 1))[: LONG_TOKENS - len(b"<assistant>") - len(b"<user>Go on.")].decode()
    return _episode(
        "long", [_node(0, None, "user", "Go on."), _node(1, 0, "assistant", text, sampled=True)], reward=1.0
    )


def _failed() -> Episode:
    nodes = [_node(0, None, "user", "Nobody answers.")]
    return _episode("broken", nodes, reward=None, error=f"EnvError: the service is away {time.strftime('%Y')}")
