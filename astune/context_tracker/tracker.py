"""The tracker: turns an agent's message lists into exact prompts, and records what the model answered.

    call 1   [S U1]          -> A1
    call 2   [S U1 A1 U2]    -> A2     begins as stored: only U2 is tokenised, A1 stays the sampled tokens
    call 3   [S U1* A1 U2]   -> A3     the agent edited U1: a branch, where A1 is pasted text and no sample

The prompt of a call is the path to the last answer of the model that the conversation holds, as it was sampled, plus
the template's delta for the messages behind it. Where the template writes that history differently by now, the
conversation is rendered anew and becomes a branch. Nothing is recorded before an answer is there, so a failed call
leaves no trace.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from astune.context_tracker.forks import REWRITTEN, fork_cause
from astune.context_tracker.messages import Identity, canonical, identity, message_of
from astune.context_tracker.renderer import Rendered, Renderer, Tool
from astune.schema import Completion, ContextOverflow, Forest, Message, MessageNode, WorkflowError

_Key = tuple[int | None, str, Identity]
"""Where a message may be found again: below a node (at the root: among those tools), by its identity."""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that was asked and not yet answered.

    `new` are the messages behind `parent`, and `rendered` what they add to its path. `rewritten` says that the template
    wrote anew what was recorded differently.
    """

    prompt_ids: list[int]
    agent: str
    trainable: bool
    parent: int | None
    new: list[Message]
    rendered: Rendered
    tools: Sequence[Tool]
    tools_key: str
    rewritten: bool


class ContextTracker:
    """Keeps the forest of one episode; safe under concurrent calls from tasks and threads."""

    def __init__(self, renderer: Renderer, max_model_len: int) -> None:
        self.forest = Forest()
        self._renderer = renderer
        self._max_model_len = max_model_len
        self._index: dict[_Key, list[int]] = {}
        """The nodes of a message: several where the template wrote it differently, or the model said it twice."""
        self._newest_child: dict[int | None, int] = {}
        self._tools_of_root: dict[int, str] = {}
        self._lock = threading.Lock()

    def prepare(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, agent: str, trainable: bool
    ) -> PendingCall:
        """Find the last recorded answer of the conversation, and render only what is new behind it.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer.
            WorkflowError: the messages or tools cannot be rendered.
        """
        if not messages:
            raise WorkflowError("the model was called without messages", hint="pass at least one message")
        plain = [canonical(message) for message in messages]
        tools_key = repr(list(tools)) if tools else ""
        with self._lock:
            parent, n_known = self._last_answer(plain, tools_key)
        rendered = self._extension(parent, plain, n_known, tools)
        rewritten = parent is not None and rendered is None
        if rendered is None:
            parent, n_known, rendered = None, 0, self._renderer.render(plain, tools)
        prompt_ids = [*self.forest.path_ids(parent), *rendered.token_ids]
        if len(prompt_ids) >= self._max_model_len:
            raise ContextOverflow(
                f"the prompt has {len(prompt_ids)} tokens, and the context ends at {self._max_model_len}",
                hint="raise rollout.max_model_len, or shorten what the agent puts into its messages",
            )
        return PendingCall(prompt_ids, agent, trainable, parent, plain[n_known:], rendered, tools, tools_key, rewritten)

    def commit(self, pending: PendingCall, completion: Completion) -> Message:
        """Record the call with its answer, and give the answer as the message that the agent reads."""
        reply = self._renderer.parse(completion.token_ids, pending.prompt_ids, pending.tools)
        with self._lock:
            parent = pending.parent
            for position in range(len(pending.new)):
                parent = self._read(parent, pending, position)
            node_id = len(self.forest.nodes)
            sampled = MessageNode(
                node_id=node_id,
                parent=parent,
                role="assistant",
                content=reply.content,
                token_ids=[*pending.rendered.generation_ids, *completion.token_ids],
                agent=pending.agent,
                reasoning=reply.reasoning,
                tool_calls=[
                    {"id": f"c{node_id:06d}{n:02d}", "type": "function", "function": {"name": name, "arguments": text}}
                    for n, (name, text) in enumerate(reply.tool_calls)
                ],
                malformed_calls=reply.malformed,
                logprobs=list(completion.logprobs),
                finish_reason=completion.finish_reason,
                weights_version=completion.weights_version,
                trainable=pending.trainable,
                fork_cause=self._cause(parent, pending, []),
            )
            message = message_of(sampled)
            who = identity(message)
            self._append(sampled, {who, who._replace(reasoning=None)}, pending)  # agents may leave out the thought
        return message

    def _last_answer(self, messages: Sequence[Message], tools_key: str) -> tuple[int | None, int]:
        """The deepest recorded answer that the conversation passes through, and how many messages lead to it."""
        found: tuple[int | None, int] = None, 0
        level: list[int | None] = [None]
        for position, message in enumerate(messages):
            who = identity(message)
            level = [child for node in level for child in self._children(node, who, tools_key)]
            if not level:
                break
            answers = [node for node in level if node is not None and self.forest.nodes[node].sampled]
            if answers:
                found = answers[-1], position + 1
        return found

    def _children(self, node: int | None, who: Identity, tools_key: str) -> list[int]:
        """The recorded children that are this message; an agent may put its own name on what the model answered."""
        key = tools_key if node is None else ""
        children = self._index.get((node, key, who), [])
        if who.name is None or who.role != "assistant":
            return children
        unnamed = self._index.get((node, key, who._replace(name=None)), [])
        return [*children, *(child for child in unnamed if self.forest.nodes[child].sampled)]

    def _extension(
        self, answer: int | None, messages: list[Message], n_known: int, tools: Sequence[Tool]
    ) -> Rendered | None:
        if answer is None:
            return None
        node = self.forest.nodes[answer]
        history = [*messages[: n_known - 1], message_of(node)]
        sampled_ids = node.token_ids[len(node.prompt_delta) :]
        return self._renderer.extend(history, sampled_ids, messages[n_known:], tools)

    def _read(self, parent: int | None, pending: PendingCall, position: int) -> int:
        """The node of a message that the model read, recorded now if it was not before."""
        message, token_ids = pending.new[position], pending.rendered.deltas[position]
        who = identity(message)
        for known in self._index.get((parent, pending.tools_key if parent is None else "", who), ()):
            node = self.forest.nodes[known]
            if not node.sampled and node.token_ids == token_ids:
                return known
        node = MessageNode(
            node_id=len(self.forest.nodes),
            parent=parent,
            role=message["role"],
            content=message["content"],
            token_ids=token_ids,
            agent=pending.agent,
            name=message.get("name"),
            reasoning=message.get("reasoning_content"),
            tool_calls=message.get("tool_calls", []),
            tool_call_id=message.get("tool_call_id"),
            fork_cause=self._cause(parent, pending, pending.new[position:]),
        )
        if parent is None:
            self._tools_of_root[node.node_id] = pending.tools_key
        self._append(node, {who}, pending)
        return node.node_id

    def _append(self, node: MessageNode, known_as: set[Identity], pending: PendingCall) -> None:
        self.forest.nodes.append(node)
        self._newest_child[node.parent] = node.node_id
        for who in known_as:
            key = (node.parent, pending.tools_key if node.parent is None else "", who)
            self._index.setdefault(key, []).append(node.node_id)

    def _cause(self, parent: int | None, pending: PendingCall, new: Sequence[Message]) -> str | None:
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
        if parent is None and self._tools_of_root.get(sibling) != pending.tools_key:
            return "tools changed"
        if pending.rewritten:
            return REWRITTEN
        return fork_cause([identity(message_of(node)) for node in old], [identity(message) for message in new])
