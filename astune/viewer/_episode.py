"""One episode as the page reads it: everything but its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from astune.runs import EpisodeReader, EpisodeRow
from astune.runs.wire import to_json
from astune.schema import Constraint, Episode, MessageNode, Vocabulary
from astune.viewer._rows import advantage_of, row_json


def read_episode(reader: EpisodeReader, episode_id: str, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """The episode, and the others of its group."""
    row, episode = reader.row(episode_id), reader.read(episode_id)
    group = reader.list(split=row.split, step=row.step, task_id=row.task_id)
    reward = episode.reward
    return {
        "row": row_json(row),
        "task": to_json(episode.task.model_dump()),
        "reward": to_json(reward.model_dump()) if reward is not None else None,
        "error": to_json(episode.error),
        "timings": episode.timings,
        "metrics": to_json(episode.metrics),
        "judge_inputs": to_json(episode.judge_inputs),
        "messages": messages_of(episode, row, vocabulary),
        "timelines": timelines_of(episode),
        "group": [_member(one) for one in sorted(group, key=lambda one: (one.repeat, one.attempt))],
    }


def messages_of(episode: Episode, row: EpisodeRow, vocabulary: Vocabulary | None) -> list[dict[str, Any]]:
    advantages = advantages_by_node(episode, row.advantages)
    return [_message(node, advantages.get(node.node_id), vocabulary) for node in episode.forest.nodes]


def advantages_by_node(episode: Episode, advantages: Sequence[float] | None) -> dict[int, float]:
    """Of each trained message: the episode's one number, or its own; empty where they are not known."""
    trained = [node.node_id for node in episode.trained_messages]
    if not advantages:
        return {}
    return dict(zip(trained, advantages if len(advantages) > 1 else [*advantages] * len(trained), strict=False))


def timelines_of(episode: Episode) -> list[dict[str, Any]]:
    """Each root-to-leaf path, and where it leaves the earlier one that it shares most with."""
    forest = episode.forest
    paths = [[node.node_id for node in forest.path(leaf)] for leaf in forest.leaves()]
    return [
        {
            "agent": timeline.agent,
            "target": episode.target_of(timeline.agent),
            "leaf": path[-1],
            "path": path,
            "n_tokens": len(timeline.token_ids),
            "n_trained": timeline.n_trained,
            "first_difference": _first_difference(path, paths[:number]),
        }
        for number, (timeline, path) in enumerate(zip(episode.timelines, paths, strict=True))
    ]


def _first_difference(path: list[int], earlier: Sequence[list[int]]) -> dict[str, int] | None:
    """None for the first path, and for one that shares nothing with any."""
    shared = [_common_beginning(path, other) for other in earlier]
    most = max(shared, default=0)
    return {"timeline": shared.index(most), "node": path[most]} if most else None


def _common_beginning(one: Sequence[int], other: Sequence[int]) -> int:
    differs = (number for number, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differs, min(len(one), len(other)))


def _message(node: MessageNode, advantage: float | None, vocabulary: Vocabulary | None) -> dict[str, Any]:
    return {
        "node": node.node_id,
        "parent": node.parent,
        "role": node.role,
        "agent": node.agent,
        "name": node.name,
        "content": to_json(node.content),
        "reasoning": node.reasoning,
        "tool_calls": to_json(node.tool_calls),
        "tool_call_id": node.tool_call_id,
        "tools": to_json(node.tools),
        "images": [list(image) for image in node.images],
        "malformed_calls": to_json(node.malformed_calls),
        "sampled": node.sampled,
        "trainable": node.trainable,
        "finish_reason": node.finish_reason,
        "weights_version": node.weights_version,
        "fork_cause": node.fork_cause,
        "constraint": _constraint_text(node.constraint),
        "n_tokens": len(node.token_ids),
        "n_sampled": node.n_sampled,
        "logprob_sum": math.fsum(node.logprobs) if node.logprobs is not None else None,
        "advantage": advantage,
        "raw": vocabulary.text(node.token_ids) if vocabulary is not None else None,
    }


def _constraint_text(constraint: Constraint | None) -> str | None:
    return f"{constraint.grammar.kind}: {constraint.grammar.text}" if constraint is not None else None


def _member(row: EpisodeRow) -> dict[str, Any]:
    return {
        "episode_id": row.episode_id,
        "repeat": row.repeat,
        "reward": row.reward,
        "status": row.status,
        "advantage": advantage_of(row.advantages),
    }
