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

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from astune.context_tracker.forks import REWRITTEN, fork_cause
from astune.context_tracker.messages import EXACT, Comparison, Identity, canonical, identity, message_of
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
    rewritten: bool
    conversation: _Conversation


@dataclass(frozen=True, slots=True)
class _Conversation:
    """An agent's messages as it sent them, and in canonical form."""

    sent: list[Message]
    plain: list[Message]
    tools_key: str


@dataclass(frozen=True, slots=True)
class _Tip:
    """Where an agent's last call stands: its conversation, the node of the last message, and the tokens of the answer's
    path. A conversation that goes on from here costs time in its new messages only."""

    conversation: _Conversation
    node: int
    answer: int
    path_ids: list[int]


class ContextTracker:
    """Keeps the forest of one episode; safe under concurrent calls from tasks and threads."""

    def __init__(self, renderer: Renderer, max_model_len: int, comparison: Comparison = EXACT) -> None:
        self.forest = Forest()
        self.relaxed = 0
        """Messages, and sets of tools, that an answer was recorded behind although they were not exactly the same."""
        self._comparison = comparison
        self._renderer = renderer
        self._max_model_len = max_model_len
        self._index: dict[_Key, list[int]] = {}
        """The nodes of a message: several where the template wrote it differently, or the model said it twice."""
        self._newest_child: dict[int | None, int] = {}
        self._tools_of_root: dict[int, str] = {}
        self._tips: dict[str, _Tip] = {}
        """By agent."""
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
        tip = self._tip(agent, messages, tools)
        conversation = _conversation(messages, tools, tip)
        plain = conversation.plain
        with self._lock:
            parent, n_known = self._last_answer(conversation, tip)
        rendered = self._extension(parent, plain, n_known, tools)
        rewritten = parent is not None and rendered is None
        if rendered is None:
            parent, n_known, rendered = None, 0, self._renderer.render(plain, tools)
        path_ids = tip.path_ids if tip and tip.answer == parent else self.forest.path_ids(parent)
        prompt_ids = [*path_ids, *rendered.token_ids]
        if len(prompt_ids) >= self._max_model_len:
            raise ContextOverflow(
                f"the prompt has {len(prompt_ids)} tokens, and the context ends at {self._max_model_len}",
                hint="raise rollout.max_model_len, or shorten what the agent puts into its messages",
            )
        return PendingCall(
            prompt_ids, agent, trainable, parent, plain[n_known:], rendered, tools, rewritten, conversation
        )

    def commit(self, pending: PendingCall, completion: Completion) -> Message:
        """Record the call with its answer, and give the answer as the message that the agent reads."""
        reply = self._renderer.parse(completion.token_ids, pending.prompt_ids, pending.tools)
        with self._lock:
            if not self._comparison.exact:
                self._count_relaxed(pending)
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
            if parent is not None:
                path_ids = [*pending.prompt_ids, *completion.token_ids]
                self._tips[pending.agent] = _Tip(pending.conversation, parent, node_id, path_ids)
        return message

    def _tip(self, agent: str, messages: Sequence[Message], tools: Sequence[Tool]) -> _Tip | None:
        """The agent's last call, where these messages go on from it."""
        tip = self._tips.get(agent)
        if tip is None or tip.conversation.tools_key != _tools_key(tools):
            return None
        sent = tip.conversation.sent
        return tip if list(messages[: len(sent)]) == sent else None

    def _last_answer(self, conversation: _Conversation, tip: _Tip | None) -> tuple[int | None, int]:
        """The deepest recorded answer that the conversation passes through, and how many messages lead to it."""
        found: tuple[int | None, int] = None, 0
        level: Sequence[int | None] = [None]
        start = 0
        if tip is not None:
            level, start = [tip.node], len(tip.conversation.sent)
        for position in range(start, len(conversation.plain)):
            who = self._comparison.key(identity(conversation.plain[position]))
            level = [child for node in level for child in self._children(node, who, conversation.tools_key)]
            if not level:
                break
            answers = [node for node in level if node is not None and self.forest.nodes[node].sampled]
            if answers:
                found = answers[-1], position + 1
        if found[0] is None and tip is not None:
            return self._last_answer(conversation, None)
        return found

    def _children(self, node: int | None, who: Identity, tools_key: str) -> list[int]:
        """The recorded children that are this message; an agent may put its own name on what the model answered."""
        key = tools_key if node is None and not self._comparison.ignore_tools else ""
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
        key = (parent, self._root_key(pending) if parent is None else "", self._comparison.key(who))
        for known in self._index.get(key, ()):
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
            node.tools = list(pending.tools)
            self._tools_of_root[node.node_id] = pending.conversation.tools_key
        self._append(node, {who}, pending)
        return node.node_id

    def _append(self, node: MessageNode, known_as: set[Identity], pending: PendingCall) -> None:
        self.forest.nodes.append(node)
        self._newest_child[node.parent] = node.node_id
        for who in {self._comparison.key(who) for who in known_as}:
            key = (node.parent, self._root_key(pending) if node.parent is None else "", who)
            self._index.setdefault(key, []).append(node.node_id)

    def _root_key(self, pending: PendingCall) -> str:
        return "" if self._comparison.ignore_tools else pending.conversation.tools_key

    def _count_relaxed(self, pending: PendingCall) -> None:
        """Compare exactly what was taken for the same."""
        path = self.forest.path(pending.parent)
        for node, message in zip(path, pending.conversation.plain, strict=False):
            recorded, sent = identity(message_of(node)), identity(message)
            if node.sampled:  # agents may name an answer, and leave out the thought
                recorded, sent = recorded._replace(name=None, reasoning=None), sent._replace(name=None, reasoning=None)
            self.relaxed += recorded != sent
        if path:
            self.relaxed += self._tools_of_root[path[0].node_id] != pending.conversation.tools_key

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
        if parent is None and self._tools_of_root.get(sibling) != pending.conversation.tools_key:
            return "tools changed"
        if pending.rewritten:
            return REWRITTEN
        return fork_cause([identity(message_of(node)) for node in old], [identity(message) for message in new])


def _tools_key(tools: Sequence[Tool]) -> str:
    return repr(list(tools)) if tools else ""


def _conversation(messages: Sequence[Message], tools: Sequence[Tool], tip: _Tip | None) -> _Conversation:
    """With copies of what the agent sent, which it may go on to change."""
    known = tip.conversation if tip is not None else _Conversation([], [], "")
    new = messages[len(known.sent) :]
    return _Conversation(
        [*known.sent, *copy.deepcopy(list(new))], [*known.plain, *map(canonical, new)], _tools_key(tools)
    )
