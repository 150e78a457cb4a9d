"""The tracker: turns an agent's message lists into exact prompts, and records what the model answered.

    call 1   [S U1]          -> A1
    call 2   [S U1 A1 U2]    -> A2     begins as stored: only U2 is tokenised, A1 stays the sampled tokens
    call 3   [S U1* A1 U2]   -> A3     the agent edited U1: a branch, where A1 is pasted text and no sample

The prompt of a call is the stored path's ids plus the template's delta for the new messages; sampled ids are
never encoded again. Nothing is recorded before an answer is there, so a failed call leaves no trace.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from astune.context_tracker.forks import fork_cause
from astune.context_tracker.messages import Identity, canonical, identity, message_of
from astune.context_tracker.renderer import Renderer, Tool
from astune.schema import Completion, ContextOverflow, Forest, Message, MessageNode, WorkflowError

_SAMPLED = "sampled"
_Key = tuple[int | None, str, Identity]
"""Where a message may be found again: below a node, below which tools or as a sample, by its identity."""


@dataclass(frozen=True, slots=True)
class _NewMessage:
    message: Message
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that was asked and not yet answered."""

    prompt_ids: list[int]
    agent: str
    trainable: bool
    parent: int | None
    new: tuple[_NewMessage, ...]
    generation_ids: list[int]
    tools: str


class ContextTracker:
    """Keeps the forest of one episode; safe under concurrent calls from tasks and threads."""

    def __init__(self, renderer: Renderer, max_model_len: int) -> None:
        self.forest = Forest()
        self._renderer = renderer
        self._max_model_len = max_model_len
        self._index: dict[_Key, int] = {}
        self._newest_child: dict[int | None, int] = {}
        self._tools_of_root: dict[int, str] = {}
        self._lock = threading.Lock()

    def prepare(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, agent: str, trainable: bool
    ) -> PendingCall:
        """Find how far the conversation is stored, and render only what is new.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer.
            WorkflowError: the messages or tools cannot be rendered.
        """
        if not messages:
            raise WorkflowError("the model was called without messages", hint="pass at least one message")
        plain = [canonical(message) for message in messages]
        offered = repr(list(tools)) if tools else ""
        parent, n_known = self._known(plain, offered)
        closing = self._closing(parent)
        deltas = self._renderer.deltas(plain[:n_known], plain[n_known:], tools)
        generation_ids = self._renderer.generation_prompt()
        if deltas:
            deltas[0] = closing + deltas[0]
        else:
            generation_ids = closing + generation_ids
        prompt_ids = [*self.forest.path_ids(parent), *chain.from_iterable(deltas), *generation_ids]
        if len(prompt_ids) >= self._max_model_len:
            raise ContextOverflow(
                f"the prompt has {len(prompt_ids)} tokens, and the context ends at {self._max_model_len}",
                hint="raise rollout.max_model_len, or shorten what the agent puts into its messages",
            )
        new = tuple(_NewMessage(message, token_ids) for message, token_ids in zip(plain[n_known:], deltas, strict=True))
        return PendingCall(prompt_ids, agent, trainable, parent, new, generation_ids, offered)

    def commit(self, pending: PendingCall, completion: Completion) -> Message:
        """Record the call with its answer, and give the answer as the message that the agent reads."""
        reply = self._renderer.parse(completion.token_ids)
        with self._lock:
            parent = pending.parent
            for position, new in enumerate(pending.new):
                key = (parent, pending.tools if parent is None else "", identity(new.message))
                known = self._index.get(key)
                if known is None:
                    known = self._add_read(parent, pending, position)
                    self._index[key] = known
                parent = known
            sampled = MessageNode(
                node_id=len(self.forest.nodes),
                parent=parent,
                role="assistant",
                content=reply.content,
                token_ids=[*pending.generation_ids, *completion.token_ids],
                agent=pending.agent,
                tool_calls=reply.tool_calls,
                logprobs=list(completion.logprobs),
                finish_reason=completion.finish_reason,
                weights_version=completion.weights_version,
                trainable=pending.trainable,
                fork_cause=self._cause(parent, pending, ()),
            )
            self._append(sampled)
            message = message_of(sampled)
            self._index[parent, _SAMPLED, identity(message)] = sampled.node_id
        return message

    def _known(self, messages: Sequence[Message], tools: str) -> tuple[int | None, int]:
        """The last stored node of the conversation, and how many messages lead to it."""
        node: int | None = None
        with self._lock:
            for position, message in enumerate(messages):
                child = self._child(node, identity(message), tools)
                if child is None:
                    return node, position
                node = child
        return node, len(messages)

    def _child(self, node: int | None, who: Identity, tools: str) -> int | None:
        """The stored child that is this message; an agent may put its own name on what the model answered."""
        sampled = self._index.get((node, _SAMPLED, who._replace(name=None)))
        return sampled if sampled is not None else self._index.get((node, tools if node is None else "", who))

    def _closing(self, node_id: int | None) -> list[int]:
        """The end of the turn that a sampled message lacks; a message that was read has it."""
        if node_id is None or not (node := self.forest.nodes[node_id]).sampled:
            return []
        return self._renderer.closing(node.token_ids[len(node.prompt_delta) :])

    def _add_read(self, parent: int | None, pending: PendingCall, position: int) -> int:
        message, token_ids = pending.new[position].message, pending.new[position].token_ids
        node = MessageNode(
            node_id=len(self.forest.nodes),
            parent=parent,
            role=message["role"],
            content=message["content"],
            token_ids=token_ids,
            agent=pending.agent,
            name=message.get("name"),
            tool_calls=message.get("tool_calls", []),
            tool_call_id=message.get("tool_call_id"),
            fork_cause=self._cause(parent, pending, pending.new[position:]),
        )
        self._append(node)
        if parent is None:
            self._tools_of_root[node.node_id] = pending.tools
        return node.node_id

    def _append(self, node: MessageNode) -> None:
        self.forest.nodes.append(node)
        self._newest_child[node.parent] = node.node_id

    def _cause(self, parent: int | None, pending: PendingCall, new: Sequence[_NewMessage]) -> str | None:
        """Why another child of `parent` is needed; None for its first one."""
        sibling = self._newest_child.get(parent)
        if sibling is None:
            return None
        old: list[MessageNode] = []
        following: int | None = sibling
        while following is not None:
            old.append(self.forest.nodes[following])
            following = self._newest_child.get(following)
        if not new and old[0].sampled:
            return "sampled again"
        if all(node.agent != pending.agent for node in old):
            return "another agent"
        if parent is None and self._tools_of_root.get(sibling) != pending.tools:
            return "tools changed"
        return fork_cause(
            [identity(message_of(node)) for node in old], [identity(addition.message) for addition in new]
        )
