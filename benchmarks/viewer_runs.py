"""Runs as big as real ones, to look at: episodes of words in several turns, with log-probabilities, forks and errors.

What they say is drawn by chance, of the words of a real tokenizer as often as words are; it is written by the store
that a training writes with. An episode has 3,000 tokens. Every fourth one branches, every tenth has a second agent, and
the run's last one has 100,000 tokens. Each task has two words of its own, which stand in its episodes and nowhere else.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from astune.runs import RunDirectory, resolve_run
from astune.schema import Episode, EpisodeStatus, Forest, MessageNode, Reward, Split, Task, Vocabulary

EPISODE_TOKENS = 3000
LONG_TOKENS = 100_000
REPEATS = 8
TASKS_PER_STEP = 50
MEASURED_TASKS = 400
"""Held-out tasks at the end, one episode each."""
_OWN_WORDS = 200
"""Two of them name a task."""
_STATUSES: dict[EpisodeStatus, float] = {"success": 0.45, "failed": 0.49, "truncated": 0.04, "error": 0.02}
_BRANCHED = {7: (2, "solver", "message edited")}
_TWO_AGENTS = {7: (0, "critic", "another agent")}
"""The message that begins a branch: its parent, who asks from there on, and why."""
_CONFIG = "astune:\n  backbone: local\n  model:\n    path: builtin:smollm2-135m\n"
_METRICS = [f"{room}/{name}" for room in ("train", "reward", "engine", "time") for name in "abcdefghij"]


class Talk:
    """Draws messages. The same seed says the same."""

    def __init__(self, vocabulary: Vocabulary, seed: int = 0) -> None:
        assert vocabulary.pieces is not None
        self._pieces = vocabulary.pieces
        ids = {piece: token for token, piece in enumerate(self._pieces)}
        self._start, self._end, self._line = ids[b"<|im_start|>"], ids[b"<|im_end|>"], ids[b"\n"]
        self._roles = {role: [ids[part.encode()] for part in parts] for role, parts in _ROLE_PARTS.items()}
        words = [token for piece, token in ids.items() if piece[:1] == b" " and piece[1:].isalpha() and len(piece) > 3]
        self._own, self._words = words[-_OWN_WORDS:], np.array(words[:-_OWN_WORDS])
        often = 1 / np.arange(1, len(self._words) + 1)
        self._often: NDArray[np.float64] = np.cumsum(often / often.sum())
        self._random = np.random.default_rng(seed)

    def own_words(self, task: int) -> str:
        """What is found in the episodes of this task and in no other."""
        return self._text(self._own_ids(task)).strip()

    def common_word(self, rank: int) -> str:
        """The more often a word is said, the lower its rank."""
        return self._text([int(self._words[rank])]).strip()

    def read(
        self, node_id: int, parent: int | None, role: str, n_tokens: int, agent: str, *, task: int | None = None
    ) -> MessageNode:
        """A message of exactly so many tokens."""
        head = [self._start, *self._roles[role], self._line]
        own = [] if task is None else self._own_ids(task)
        said = own + self._said(n_tokens - len(head) - len(own) - 2)
        return MessageNode(node_id, parent, role, self._text(said), [*head, *said, self._end, self._line], agent)

    def sampled(self, node_id: int, parent: int | None, n_tokens: int, agent: str, *, version: int) -> MessageNode:
        head = [self._line, self._start, *self._roles["assistant"], self._line]
        said = self._said(n_tokens - len(head) - 1)
        thought = len(said) // 3
        logprobs = -self._random.exponential(0.4, len(said) + 1).astype(np.float32)
        return MessageNode(
            node_id,
            parent,
            "assistant",
            self._text(said[thought:]),
            [*head, *said, self._end],
            agent,
            reasoning=self._text(said[:thought]),
            logprobs=logprobs.tolist(),
            finish_reason="stop",
            weights_version=version,
            trainable=agent == "solver",
        )

    def _own_ids(self, task: int) -> list[int]:
        return [self._own[task // _OWN_WORDS], self._own[task % _OWN_WORDS]]

    def _said(self, n_tokens: int) -> list[int]:
        return self._words[np.searchsorted(self._often, self._random.random(n_tokens))].tolist()

    def _text(self, token_ids: list[int]) -> str:
        return b"".join(self._pieces[token] for token in token_ids).decode()


_ROLE_PARTS = {"system": ["system"], "user": ["user"], "assistant": ["ass", "istant"], "tool": ["tool"]}


def episodes(n: int, talk: Talk) -> Iterator[Episode]:
    """A training's episodes in order: groups, steps, and a measurement at the end."""
    measured = min(MEASURED_TASKS, n // 10)
    for number in range(n):
        group, repeat = divmod(number, REPEATS)
        step = 1 + group // TASKS_PER_STEP
        if number < n - measured:
            yield _episode(talk, "train", step, group, repeat, number)
        else:
            yield _episode(talk, "validation", step, number, 0, number, long=number == n - 1)


def _episode(
    talk: Talk, split: Split, step: int, task: int, repeat: int, number: int, *, long: bool = False
) -> Episode:
    chance = random.Random(number)
    status: EpisodeStatus = chance.choices(list(_STATUSES), list(_STATUSES.values()))[0]
    failed = status == "error"
    task_id = f"task-{task:06d}"
    return Episode(
        episode_id=f"{split}-{step:06d}-{task_id}-{repeat:03d}-1",
        task=Task(task_id=task_id, main_query=f"What of {talk.own_words(task)}?", metadata={"answer": str(task)}),
        split=split,
        step=step,
        repeat=repeat,
        attempt=1,
        seed=number,
        forest=Forest(_nodes(talk, task, number, step, LONG_TOKENS if long else EPISODE_TOKENS)),
        status=status,
        reward=None if failed else Reward(raw_reward=round(chance.random(), 3), is_success=status == "success"),
        error="EnvError: the service did not answer within 60 s" if failed else None,
        metrics={"turns": 5.0},
        timings={"wait": 0.1, "model": 20 * chance.random(), "env": 0.5, "judge": 0.01, "total": 21.0},
        judge_inputs={"final_answer": str(chance.randrange(100))},
    )


def _nodes(talk: Talk, task: int, number: int, step: int, n_tokens: int) -> list[MessageNode]:
    """A question of 500 tokens, turns of 500, and an answer of 500."""
    branches = _BRANCHED if number % 4 == 3 else _TWO_AGENTS if number % 10 == 0 else {}
    if n_tokens > EPISODE_TOKENS:
        branches = {}
    nodes = [talk.read(0, None, "system", 200, "solver"), talk.read(1, 0, "user", 300, "solver", task=task)]
    agent = "solver"
    for _ in range((n_tokens - 1000) // 500):
        nodes.append(talk.sampled(len(nodes), len(nodes) - 1, 300, agent, version=step - 1))
        at = len(nodes)
        parent, agent, cause = branches.get(at, (at - 1, agent, None))
        nodes.append(talk.read(at, parent, "tool", 200, agent))
        nodes[-1].fork_cause = cause
    nodes.append(talk.sampled(len(nodes), len(nodes) - 1, 500, agent, version=step - 1))
    return nodes


def trainer_logprobs(episode: Episode) -> NDArray[np.float32]:
    """As a trainer computes them: close to the engine's."""
    return np.concatenate(
        [np.asarray(node.logprobs, np.float32) - 0.01 for node in episode.forest.nodes if node.sampled]
    )


def written(folder: Path, n: int, vocabulary: Vocabulary) -> RunDirectory:
    """The run of `n` episodes, whose record is `folder`; one that is whole is used again."""
    if folder.exists():
        found = RunDirectory.open(resolve_run(folder))
        if found.info().status == "finished":
            return found
        shutil.rmtree(folder)
    chance = random.Random(n)
    with RunDirectory.create(folder, f"{n}_episodes") as run:
        run.save_config(_CONFIG)
        run.save_vocabulary(vocabulary)
        with run.open_episodes() as store, run.open_metrics() as metrics:
            for episode in episodes(n, Talk(vocabulary)):
                is_trained = episode.split == "train" and episode.reward is not None
                store.append(episode, [round(chance.gauss(0, 1), 3)] if is_trained else None)
                if is_trained:
                    store.annotate_logprobs(episode.episode_id, trainer_logprobs(episode))
            store.flush()
            for summary in store.summaries("train"):
                metrics.append(summary.step, "train", dict.fromkeys(_METRICS, 0.5) | {"reward/mean": summary.reward})
        run.finish("finished")
    return RunDirectory.open(run.path)
