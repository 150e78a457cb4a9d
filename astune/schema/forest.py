"""The message forest: what the agents of an episode read and wrote, with each message stored once.

A node holds one message's token delta; the path from a root to a node is exactly the token sequence that the model saw
there. This module defines the record and its views; the tracker (`astune/context_tracker`) builds it. The forest knows
nothing of rewards or training.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from astune.schema.grammar import ConstrainedTokens, Constraint
from astune.schema.sampling import Completion, FinishReason
from astune.schema.timeline import Span, Timeline

NOT_A_TARGET = "not a training target"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def tool_call_id(message: int, number: int) -> str:
    """Return the id of a tool call of a sampled message, in a format that every provider accepts.

    Args:
        message: number of the message, independent of the order of recording since templates may render ids.
        number: index of the call in the message.
    """
    digits = [_DIGITS[message // len(_DIGITS) ** place % len(_DIGITS)] for place in reversed(range(6))]
    return f"c{''.join(digits)}{number:02d}"


def is_tool_call_id(call_id: object) -> bool:
    """Return whether an id has the form of `tool_call_id`; ids that agents make up have other formats."""
    return isinstance(call_id, str) and re.fullmatch(r"c[0-9a-z]{6}\d{2,3}", call_id) is not None


def number_of_call(call_id: str) -> int:
    """Return the index of the call with the id `call_id` in its message."""
    return int(call_id[7:])


def message_of_call(call_id: str) -> int:
    """Return a number of a message whose calls have such ids: `tool_call_id` of it gives them again."""
    return int(call_id[1:7], len(_DIGITS))


@dataclass(slots=True)
class MessageNode:
    """A message as the model read or wrote it.

    `token_ids` is the delta to the parent's path. For a sampled message it begins with the template's
    generation prompt, and its last `len(logprobs)` tokens are the sampled ones.
    """

    node_id: int
    parent: int | None
    role: str
    content: Any
    token_ids: list[int]
    agent: str
    name: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    tool_call_id: str | None = None
    images: list[tuple[int, str]] = field(default_factory=list)
    """Images: the number of characters of the content before each, and the SHA-256 of its bytes or of its URL."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tools offered in the conversations that begin here; on roots only."""
    malformed_calls: list[str] = field(default_factory=list)
    """Raw text of malformed tool calls; it is also part of the content."""
    logprobs: list[float] | None = None
    finish_reason: FinishReason | None = None
    weights_version: int | None = None
    trainable: bool = False
    fork_cause: str | None = None
    """Reason why this node starts a branch although its parent already had a child; None for the first child."""
    constraint: Constraint | None = None
    """Grammar that a sampled message was sampled under; None if unconstrained."""
    stopped_by: str | None = None
    """The agent's stop sequence that ended a sampled message: its tokens hold it, and its content ends before it."""
    asked_after: int = field(default=0, compare=False)
    """Number of answers in the episode when this one was requested: the order of calls, which `by_tokens` drops."""

    @property
    def sampled(self) -> bool:
        return self.logprobs is not None

    @property
    def n_sampled(self) -> int:
        return len(self.logprobs) if self.logprobs is not None else 0

    @property
    def prompt_delta(self) -> list[int]:
        """Tokens of this delta that the model read rather than wrote."""
        return self.token_ids[: len(self.token_ids) - self.n_sampled]

    @property
    def sampled_ids(self) -> list[int]:
        """Tokens of this delta that the model wrote."""
        return self.token_ids[len(self.token_ids) - self.n_sampled :]


@dataclass(slots=True)
class Forest:
    """Nodes in order of recording; a parent always precedes its children.

    `day` is the ISO 8601 date that templates used as today's: some render it into the system message.
    """

    nodes: list[MessageNode] = field(default_factory=list)
    day: str | None = None

    def by_tokens(self) -> Forest:
        """Return a copy with siblings ordered by content instead of by time of recording.

        Concurrent calls of an episode are answered in any order. Whatever depends on the order is recomputed: the node
        ids, which of several siblings is the first child, and the agent recorded as the reader of a shared message.
        """
        children: defaultdict[int | None, list[MessageNode]] = defaultdict(list)
        for node in self.nodes:
            children[node.parent].append(node)
        ordered: list[MessageNode] = []
        pending = _siblings(children[None], None)[::-1]
        while pending:
            node = pending.pop()
            ordered.append(replace(node, node_id=len(ordered)))
            pending += _siblings(children[node.node_id], len(ordered) - 1)[::-1]
        for node in reversed(ordered):
            if node.parent is not None and not ordered[node.parent].sampled:
                ordered[node.parent].agent = node.agent
        return Forest(ordered, self.day)

    def path(self, node_id: int | None) -> list[MessageNode]:
        """Return the nodes from a root down to `node_id`, both included; empty for None."""
        path: list[MessageNode] = []
        while node_id is not None:
            path.append(self.nodes[node_id])
            node_id = self.nodes[node_id].parent
        return path[::-1]

    def path_ids(self, node_id: int | None) -> list[int]:
        """Return the exact token sequence that the model saw up to and including `node_id`."""
        return [token for node in self.path(node_id) for token in node.token_ids]

    def replay(self) -> Iterator[tuple[MessageNode, list[int], Completion]]:
        """Yield every recorded model call, in order: its node, its prompt ids and its completion (law 2)."""
        for node in self.nodes:
            if node.logprobs is None or node.finish_reason is None or node.weights_version is None:
                continue
            prompt_ids = self.path_ids(node.parent) + node.prompt_delta
            answer = Completion(node.sampled_ids, node.logprobs, node.finish_reason, node.weights_version)
            yield node, prompt_ids, answer

    def answers(self) -> list[MessageNode]:
        """The sampled messages in the order in which they were asked for, whatever the order of the nodes."""
        return sorted((node for node in self.nodes if node.sampled), key=lambda node: node.asked_after)

    def trained_answers(self) -> list[MessageNode]:
        """The same of the trained agents alone."""
        return [node for node in self.answers() if node.trainable]

    def sampled_tokens(self) -> int:
        return sum(node.n_sampled for node in self.nodes)

    def trained_tokens(self, constrained_tokens: ConstrainedTokens = "replay", left_out: Container[int] = ()) -> int:
        """Count the sampled tokens that some timeline trains, without flattening any.

        Args:
            left_out: messages that are excluded, by node id.
        """
        trained = (node for node in self.nodes if is_trained(node, constrained_tokens))
        return sum(node.n_sampled for node in trained if node.node_id not in left_out)

    def leaves(self) -> list[int]:
        """Return the last message of each root-to-leaf path with a sampled message, in order of recording."""
        answered: list[bool] = []
        for node in self.nodes:
            answered.append(node.sampled or (node.parent is not None and answered[node.parent]))
        parents = {node.parent for node in self.nodes}
        return [node.node_id for node in self.nodes if node.node_id not in parents and answered[node.node_id]]

    def timelines(
        self, constrained_tokens: ConstrainedTokens = "replay", left_out: Mapping[int, str] | None = None
    ) -> list[Timeline]:
        """Flatten each root-to-leaf path that holds a sampled message.

            nodes    S -> U1 -> A1 -> U2 -> A2        and the agent edited U1:
                     S -> U1* -> A1' -> U2 -> A3      (A1' is pasted text, not a sample)

        gives  S U1 [A1] U2 [A2]   and   S U1* A1' U2 [A3].

        A sampled message is trained exactly once, in the first timeline that passes through it; in later ones it is
        masked as "trained in another timeline". A message that is not a training target is masked everywhere, and so is
        one sampled under a grammar if `constrained_tokens` is "mask", or one in `left_out`, with the reason given
        there.
        """
        first, left_out = self.first_timelines(), left_out or {}
        return [
            _flatten(self.path(leaf), number, first, constrained_tokens, left_out)
            for number, leaf in enumerate(self.leaves())
        ]

    def timeline(
        self, number: int, constrained_tokens: ConstrainedTokens = "replay", left_out: Mapping[int, str] | None = None
    ) -> Timeline:
        """Return one of `timelines`, without flattening the others."""
        path, first = self.path(self.leaves()[number]), self.first_timelines()
        return _flatten(path, number, first, constrained_tokens, left_out or {})

    def first_timelines(self) -> dict[int, int]:
        """Map each node id to the number of the first timeline that passes through it."""
        first: dict[int, int] = {}
        for number, leaf in enumerate(self.leaves()):
            node_id: int | None = leaf
            while node_id is not None and node_id not in first:
                first[node_id] = number
                node_id = self.nodes[node_id].parent
        return first


def _siblings(nodes: list[MessageNode], parent: int | None) -> list[MessageNode]:
    """Return copies of the children of one node, ordered by content; the first of them is not a branch."""

    def content(node: MessageNode) -> tuple[list[int], str, str, list[float], str]:
        who = node.agent if node.sampled else ""
        return node.token_ids, node.role, who, node.logprobs or [], repr((node.name, node.content, node.tools))

    ordered = [replace(node, parent=parent) for node in sorted(nodes, key=content)]
    cause = ordered[0].fork_cause if ordered else None
    for node in ordered[1:]:
        node.fork_cause = node.fork_cause or cause
    if ordered:
        ordered[0].fork_cause = None
    return ordered


def is_trained(node: MessageNode, constrained_tokens: ConstrainedTokens) -> bool:
    """Return whether the first timeline through the node trains its sampled tokens."""
    return node.sampled and _masked_everywhere(node, constrained_tokens) is None


def _masked_everywhere(node: MessageNode, constrained_tokens: ConstrainedTokens) -> str | None:
    if not node.trainable:
        return NOT_A_TARGET
    return "sampled under a grammar" if node.constraint is not None and constrained_tokens == "mask" else None


def _flatten(
    path: list[MessageNode],
    number: int,
    first: dict[int, int],
    constrained_tokens: ConstrainedTokens,
    left_out: Mapping[int, str],
) -> Timeline:
    """Flatten the path of timeline `number`; `first` is `Forest.first_timelines`."""
    timeline = Timeline(token_ids=[], loss_mask=[], logprobs=[], agent=path[-1].agent, spans=[])
    for node in path:
        reason: str | None = None
        if node.sampled:
            reason = _masked_everywhere(node, constrained_tokens) or left_out.get(node.node_id)
            if reason is None and first[node.node_id] != number:
                reason = "trained in another timeline"
        _append(timeline, node, node.prompt_delta, sampled=False, reason=None)
        if node.logprobs is not None:
            _append(timeline, node, node.sampled_ids, sampled=True, reason=reason)
    return timeline


def _append(timeline: Timeline, node: MessageNode, token_ids: list[int], *, sampled: bool, reason: str | None) -> None:
    if not token_ids:
        return
    start = len(timeline.token_ids)
    timeline.token_ids += token_ids
    timeline.loss_mask += [sampled and reason is None] * len(token_ids)
    timeline.logprobs += node.logprobs if sampled and node.logprobs is not None else [0.0] * len(token_ids)
    timeline.spans.append(
        Span(
            start=start,
            end=len(timeline.token_ids),
            node_id=node.node_id,
            role=node.role,
            agent=node.agent,
            sampled=sampled,
            mask_reason=reason,
            weights_version=node.weights_version if sampled else None,
            constraint=node.constraint if sampled else None,
        )
    )
