"""Episodes in the shape of public agent benchmarks, made by a seeded generator, and episodes of a recorded run.

A made episode begins with a system prompt and tool descriptions that all episodes share, then its task, then turns of
an answer and an observation. On the side it asks again after an edited message, and has a helper that knows the
system prompt alone. Token ids are random: what a token says costs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from astune.runs import RunDirectory, resolve_run
from astune.schema import Episode, EpisodeGroup, Forest, MessageNode, Reward, Task

CONTROL_IDS = 100
"""Ids below may be special tokens and are not drawn."""


@dataclass(frozen=True)
class Shape:
    """Lengths in tokens; a pair is a range to draw from."""

    tasks: int = 1
    rollouts: int = 8
    system: int = 1500
    question: tuple[int, int] = (60, 120)
    turns: tuple[int, int] = (10, 30)
    answer: tuple[int, int] = (15, 60)
    observation: tuple[int, int] = (15, 90)
    edits: int = 2
    """Times that an episode asks once more after an edited observation."""
    helpers: int = 1
    """Helpers of an episode, with four turns each."""


def made_groups(shape: Shape, *, vocabulary: int, seed: int) -> list[EpisodeGroup]:
    rng = random.Random(seed)
    system = _tokens(rng, vocabulary, (shape.system, shape.system))
    groups: list[EpisodeGroup] = []
    for number in range(shape.tasks):
        task = Task(task_id=f"made-{number}", main_query="?")
        question = _tokens(rng, vocabulary, shape.question)
        episodes = [
            _episode(task, repeat, _Writer(shape, vocabulary, rng).write(system, question))
            for repeat in range(shape.rollouts)
        ]
        groups.append(EpisodeGroup(task, episodes))
    return groups


def recorded_groups(run: Path, *, tasks: int) -> list[EpisodeGroup]:
    """Groups that a run recorded in training, from the middle of the run on, where answers still differ.

    A small model's episodes of one step share so much that nothing is left to measure, so groups of several are taken.
    """
    with RunDirectory.open(resolve_run(run)).episodes() as reader:
        rows = [row for row in reader.list(split="train") if row.reward is not None]
        steps = sorted({row.step for row in rows})
        groups: dict[tuple[int, str], list[Episode]] = {}
        for row in rows:
            key = row.step, row.task_id
            if row.step >= steps[len(steps) // 2] and (key in groups or len(groups) < tasks):
                groups.setdefault(key, []).append(reader.read(row.episode_id))
    return [EpisodeGroup(episodes[0].task, episodes) for episodes in groups.values()]


@dataclass(frozen=True)
class Sample:
    """One call to the model: what it read, then what it said."""

    token_ids: list[int]
    n_said: int


def samples_of(groups: Sequence[EpisodeGroup]) -> Iterator[Sample]:
    """Every call whose answer is trained, in the order of recording."""
    for group in groups:
        for episode in group.episodes:
            for node, prompt, completion in episode.forest.replay():
                if node.trainable and completion.token_ids:
                    yield Sample([*prompt, *completion.token_ids], len(completion.token_ids))


class _Writer:
    """Draws one episode's forest."""

    def __init__(self, shape: Shape, vocabulary: int, rng: random.Random) -> None:
        self._shape, self._vocabulary, self._rng = shape, vocabulary, rng
        self._nodes: list[MessageNode] = []

    def write(self, system: list[int], question: list[int]) -> Forest:
        root = self._read(None, system)
        heard = [self._read(root, question)]
        for _ in range(self._rng.randint(*self._shape.turns)):
            heard.append(self._turn(heard[-1]))
        for _ in range(self._shape.edits):
            before = self._nodes[self._rng.choice(heard[1:])].parent
            self._turn(self._read(before, self._draw(self._shape.observation)))
        for _ in range(self._shape.helpers):
            asked = self._read(root, self._draw(self._shape.question))
            for _ in range(4):
                asked = self._turn(asked)
        return Forest(self._nodes)

    def _turn(self, parent: int) -> int:
        """An answer and an observation; the latter's node."""
        said = self._draw(self._shape.answer)
        return self._read(self._add(parent, said, [-1.0] * len(said)), self._draw(self._shape.observation))

    def _read(self, parent: int | None, token_ids: list[int]) -> int:
        return self._add(parent, token_ids, None)

    def _add(self, parent: int | None, token_ids: list[int], logprobs: list[float] | None) -> int:
        sampled = logprobs is not None
        self._nodes.append(
            MessageNode(
                node_id=len(self._nodes),
                parent=parent,
                role="assistant" if sampled else "user",
                content="",
                token_ids=token_ids,
                agent="agent",
                logprobs=logprobs,
                finish_reason="stop" if sampled else None,
                weights_version=0 if sampled else None,
                trainable=sampled,
            )
        )
        return len(self._nodes) - 1

    def _draw(self, length: tuple[int, int]) -> list[int]:
        return _tokens(self._rng, self._vocabulary, length)


def _tokens(rng: random.Random, vocabulary: int, length: tuple[int, int]) -> list[int]:
    return [rng.randrange(CONTROL_IDS, vocabulary) for _ in range(rng.randint(*length))]


def _episode(task: Task, repeat: int, forest: Forest) -> Episode:
    return Episode(
        episode_id=f"{task.task_id}-{repeat}",
        task=task,
        split="train",
        step=0,
        repeat=repeat,
        attempt=1,
        seed=0,
        forest=forest,
        status="success",
        reward=Reward(raw_reward=float(repeat % 2), is_success=repeat % 2 == 1),
    )
