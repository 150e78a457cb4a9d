"""An episode as the page reads it: everything but its tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from astune.config.policies import DEFAULT_POLICY
from astune.runs import EpisodeReader, EpisodeRow, message_text
from astune.schema import Constraint, Episode, MessageNode, Vocabulary, is_trained
from astune.viewer._answers import plain, plain_text
from astune.viewer._found import question_of
from astune.viewer._revision import episode_revision, group_of
from astune.viewer._rows import advantage_of, row_json
from astune.viewer._settings import Settings, policies_of

LEFT_OUT = "left out of the update"
_AS_IT_IS = (
    *("parent", "role", "agent", "name", "reasoning", "tool_call_id", "sampled", "trainable", "finish_reason"),
    *("weights_version", "fork_cause", "n_sampled"),
)
"""Fields of a message that the page reads unchanged."""


def read_episode(
    reader: EpisodeReader,
    row: EpisodeRow,
    episode: Episode,
    vocabulary: Vocabulary | None,
    settings: Settings,
) -> dict[str, Any]:
    """The episode, and those of its group that did not fail; `settings` are the run's own."""
    group = group_of(reader, row)
    reward = episode.reward
    return {
        "revision": episode_revision(row, group),
        "row": row_json(row, question_of(episode)),
        "task": plain(asdict(episode.task)),
        "reference": plain(episode.task.metadata.get(settings.values.get("task_judge.reference_field", "answer"))),
        "reward": plain(reward.model_dump()) if reward is not None else None,
        "error": plain(episode.error),
        "timings": episode.timings,
        "metrics": plain(episode.metrics),
        "judge_inputs": plain(episode.judge_inputs),
        "messages": messages_of(episode, row, vocabulary),
        "timelines": timelines_of(episode, row, policies_of(settings)),
        "group": [_member(one) for one in sorted(group, key=lambda one: one.repeat) if one.status != "error"],
    }


def messages_of(episode: Episode, row: EpisodeRow, vocabulary: Vocabulary | None) -> list[dict[str, Any]]:
    advantages = advantages_by_node(episode, row.advantages)
    return [_message(node, episode, advantages.get(node.node_id), vocabulary) for node in episode.forest.nodes]


def advantages_by_node(episode: Episode, advantages: Sequence[float] | None) -> dict[int, float]:
    """The advantage of each trained message: the episode's one number, or its own; empty where they are not known."""
    return {node: value for node, value in _by_node(episode, advantages).items() if not math.isnan(value)}


def left_out(episode: Episode, advantages: Sequence[float] | None) -> dict[int, str]:
    """The messages that the update left out: those without an advantage in an episode with a reward."""
    if episode.reward is None:
        return {}
    return {node: LEFT_OUT for node, value in _by_node(episode, advantages).items() if math.isnan(value)}


def _by_node(episode: Episode, advantages: Sequence[float] | None) -> dict[int, float]:
    trained = [node.node_id for node in episode.trained_messages]
    if not advantages:
        return {}
    return dict(zip(trained, advantages if len(advantages) > 1 else [*advantages] * len(trained), strict=False))


def timelines_of(episode: Episode, row: EpisodeRow, policies: Mapping[str, str] = {}) -> list[dict[str, Any]]:
    """Each root-to-leaf path."""
    otherwise = DEFAULT_POLICY if policies else None
    forest, first = episode.forest, episode.forest.first_timelines()
    without = left_out(episode, row.advantages)
    found: list[dict[str, Any]] = []
    for number, leaf in enumerate(forest.leaves()):
        path = forest.path(leaf)
        own = (node for node in path if first[node.node_id] == number and row.untrained is None)
        trained = (node for node in own if node.node_id not in without)
        found.append(
            {
                "agent": path[-1].agent,
                "target": (target := episode.target_of(path[-1].agent)),
                "policy": policies.get(target, otherwise),
                "leaf": leaf,
                "path": [node.node_id for node in path],
                "n_tokens": sum(len(node.token_ids) for node in path),
                "n_trained": sum(node.n_sampled for node in trained if is_trained(node, episode.constrained_tokens)),
            }
        )
    return found


def _message(
    node: MessageNode, episode: Episode, advantage: float | None, vocabulary: Vocabulary | None
) -> dict[str, Any]:
    return {
        "node": node.node_id,
        **{name: getattr(node, name) for name in _AS_IT_IS},
        **{name: plain(getattr(node, name)) for name in ("content", "tool_calls", "tools", "malformed_calls")},
        "images": [list(image) for image in node.images],
        "constraint": _constraint_text(node.constraint),
        "n_tokens": len(node.token_ids),
        "logprob_sum": None if node.logprobs is None or episode.given else math.fsum(node.logprobs),
        "advantage": advantage,
        "raw": vocabulary.text(node.token_ids) if vocabulary is not None else None,
        "searched": _searched(node),
    }


def _searched(node: MessageNode) -> str | None:
    """Return the searchable text beside the reasoning; None if it is the content itself."""
    text = plain_text(message_text(node.content, node.tool_calls))
    return text if text != node.content else None


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
