"""The tracker turns an agent's message lists into exact prompts, and records the model's answers.

    call 1   [S U1]          -> A1
    call 2   [S U1 A1 U2]    -> A2     begins as stored: only U2 is tokenised, A1 stays the sampled tokens
    call 3   [S U1* A1 U2]   -> A3     the agent edited U1: a branch, where A1 is pasted text and no sample

The prompt of a call is the path to the last sampled answer in the conversation, plus the template's delta for the
messages after it. If the template renders that history differently, the conversation is re-rendered and becomes a
branch. Nothing is recorded before the answer exists, so a failed call leaves no trace.
"""

from __future__ import annotations

import copy
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import date

from astune.context_tracker.conversation import Conversation, Tip, require_messages, tools_key_of
from astune.context_tracker.forks import REWRITTEN, VAGUE, fork_cause
from astune.context_tracker.pending import CallSeeds, PendingCall
from astune.renderers.messages import EXACT, Comparison, Identity, identity, message_of
from astune.renderers.renderer import Rendered, Renderer, Reply, Tool
from astune.renderers.settled import Settled, before_markers, settled_text
from astune.renderers.stop_sequences import before, sequence_in, settled_before
from astune.schema import (
    Completion,
    Constraint,
    ContextOverflow,
    Forest,
    Grammar,
    Message,
    MessageNode,
)

_LOOKED_AT = 3
"""Branches of an agent that a new one is compared with, to name what the agent did."""
_Key = tuple[int | None, str, Identity]
"""The key by which a message is found again: below a node (at the root: among those tools), by its identity."""


class ContextTracker:
    """Builder of the forest of one episode; safe under concurrent calls from tasks and threads."""

    def __init__(
        self, renderer: Renderer, max_model_len: int, comparison: Comparison = EXACT, *, day: date | None = None
    ) -> None:
        today = day or date.today()  # of the whole episode, also beyond midnight
        self.forest = Forest(day=today.isoformat())
        self._passed_over: set[tuple[int, Identity | str]] = set()
        self._comparison = comparison
        self._renderer = renderer.on(today)
        self._max_model_len = max_model_len
        self._index: dict[_Key, list[int]] = {}
        """Nodes by message: several if the template rendered it differently, or the model repeated it."""
        self._newest_child: dict[int | None, int] = {}
        self._branches: defaultdict[tuple[int | None, str], deque[int]] = defaultdict(lambda: deque(maxlen=_LOOKED_AT))
        """The newest children of a node that an agent recorded."""
        self._tips: dict[str, Tip] = {}
        """Position of the last call, by agent."""
        self._n_answers = 0
        self._call_seeds = CallSeeds()
        self._lock = threading.Lock()

    @property
    def relaxed(self) -> int:
        """Messages, and sets of tools, that counted as recorded ones although they were not exactly the same."""
        return len(self._passed_over)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        return self._renderer.decode(token_ids)

    def prepare(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        agent: str,
        trainable: bool,
        grammar: Grammar | None = None,
        must_call: Sequence[Tool] = (),
        stop: Sequence[str] = (),
        bounded: bool = True,
    ) -> PendingCall:
        """Find the last recorded answer of the conversation, and render only the messages after it.

        Args:
            grammar: what the answer's text must be.
            must_call: tools of which the answer must call one; none where it is free.
            stop: texts at which the answer ends, which is then without them.
            bounded: whether the prompt has to leave room for an answer.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer.
            WorkflowError: the messages or tools cannot be rendered.
        """
        require_messages(messages)
        tip = self._tip(agent, messages, tools)
        conversation = Conversation.of(agent, messages, tools, going_on=tip.conversation if tip is not None else None)
        plain = conversation.plain
        with self._lock:
            parent, n_known = self._last_answer(conversation, tip)
        if bounded:
            self._require_short(plain[n_known:])
        known, path_ids = self._path(parent, tip)
        offered = tools
        if parent is not None and self._comparison.ignore_tools and not must_call:
            tools = self.forest.path(parent)[0].tools  # those that the model read
        rendered = self._extension(parent, known, plain[n_known:], tools)
        rewritten = parent is not None and rendered is None
        if rendered is None:
            parent, known, path_ids, n_known, tools = None, [], [], 0, offered
            rendered = self._renderer.render(plain, tools)
        prompt_ids = [*path_ids, *rendered.token_ids]
        if bounded and len(prompt_ids) >= self._max_model_len:
            raise self._overflow(f"the prompt has {len(prompt_ids)} tokens")
        return PendingCall(
            prompt_ids,
            agent,
            trainable,
            parent,
            known,
            plain[n_known:],
            rendered,
            tools,
            rewritten,
            conversation,
            form=self._renderer.call_grammar(must_call) if must_call else grammar,
            literal=grammar is not None,
            stop=stop,
            call_seed=self._call_seeds.next(agent, prompt_ids),
            asked_after=self._n_answers,
        )

    def read(self, messages: Sequence[Message], tools: Sequence[Tool], *, agent: str) -> None:
        """Record a conversation that another model answered: all of it is text, and nothing in it is a sample.

        Raises:
            WorkflowError: the messages or tools cannot be rendered.
        """
        pending = self.prepare(messages, tools, agent=agent, trainable=False, bounded=False)
        with self._lock:
            self._read_all(pending)

    def _require_short(self, new: Sequence[Message]) -> None:
        """Raise ContextOverflow at once for a message that is megabytes long: tokenising it would block all
        episodes."""
        for message in new:
            content = message["content"]
            if message["role"] != "assistant" and self._renderer.is_longer(content, self._max_model_len):
                raise self._overflow(f"a message of {len(content):,} characters does not fit")

    def _overflow(self, what: str) -> ContextOverflow:
        return ContextOverflow(
            f"{what}, and the context ends at {self._max_model_len}",
            hint="raise rollout.max_model_len, or shorten what the agent puts into its messages",
        )

    def commit(self, pending: PendingCall, completion: Completion, constraint: Constraint | None = None) -> Message:
        """Record the call with its answer, and give the answer as the message that the agent reads.

        Args:
            constraint: what the answer was sampled under, to keep to the call's `form`.
        """
        reply = self._reply(pending, completion.token_ids)
        stopped_by = sequence_in(reply.content, pending.stop)
        reply = before(reply, stopped_by)
        with self._lock:
            if not self._comparison.exact:
                self._count_relaxed(pending)
            parent = self._read_all(pending)
            node_id = len(self.forest.nodes)
            sampled = MessageNode(
                node_id=node_id,
                parent=parent,
                role="assistant",
                content=reply.content,
                token_ids=[*pending.rendered.generation_ids, *completion.token_ids],
                agent=pending.agent,
                reasoning=reply.reasoning,
                tool_calls=pending.tool_calls(reply.tool_calls),
                malformed_calls=reply.malformed,
                logprobs=list(completion.logprobs),
                finish_reason=completion.finish_reason,
                weights_version=completion.weights_version,
                trainable=pending.trainable,
                fork_cause=self._cause(parent, pending, []),
                constraint=constraint,
                stopped_by=stopped_by,
                asked_after=pending.asked_after,
            )
            self._n_answers += 1
            message = message_of(sampled)
            who = identity(message)
            self._append(sampled, {who, who._replace(reasoning=None)}, pending)  # agents may leave out the thought
            if parent is not None:
                path = [*pending.known, *pending.new, message]
                path_ids = [*pending.prompt_ids, *completion.token_ids]
                self._tips[pending.agent] = Tip(pending.conversation, parent, node_id, path, path_ids)
        return copy.deepcopy(message)  # the agent may change it later

    def _reply(self, pending: PendingCall, sampled_ids: Sequence[int]) -> Reply:
        if pending.literal:
            return Reply(self._renderer.text(sampled_ids))
        return self._renderer.parse(sampled_ids, pending.prompt_ids, pending.tools)

    def settled(self, pending: PendingCall, sampled_ids: Sequence[int], *, calls: bool = False) -> Settled:
        """Return the beginning of the answer that `commit` will return, whatever is sampled after these tokens.

        Args:
            calls: whether calls are settled, too, although they may turn out malformed: such an answer is not read.
        """
        return pending.named(settled_before(self._settled(pending, sampled_ids, calls=calls), pending.stop))

    def _settled(self, pending: PendingCall, sampled_ids: Sequence[int], *, calls: bool = False) -> Settled:
        if pending.literal:
            return Settled(content=settled_text(self._renderer.text(sampled_ids)))
        return self._renderer.settled(sampled_ids, pending.prompt_ids, pending.tools, calls=calls)

    def shows_stop(self, pending: PendingCall, sampled_ids: Sequence[int]) -> bool:
        """Return whether the answer's text contains a stop sequence, whatever is sampled after these tokens."""
        content = self._reply(pending, sampled_ids).content
        if sequence_in(content, pending.stop) is None:
            return False
        if not pending.tools and sequence_in(before_markers(content), pending.stop) is not None:
            return True  # no call can turn it into something else
        return sequence_in(self._settled(pending, sampled_ids).content, pending.stop) is not None

    def _tip(self, agent: str, messages: Sequence[Message], tools: Sequence[Tool]) -> Tip | None:
        """Return the agent's last call, if these messages extend it."""
        tip = self._tips.get(agent)
        if tip is None or tip.conversation.tools_key != tools_key_of(tools):
            return None
        return tip if tip.conversation.begins(messages) else None

    def _last_answer(self, conversation: Conversation, tip: Tip | None) -> tuple[int | None, int]:
        """The deepest recorded answer that the conversation passes through, and how many messages lead to it."""
        found: tuple[int | None, int] = None, 0
        level: Sequence[int | None] = [None]
        start = 0
        if tip is not None:
            level, start = [tip.node], len(tip.conversation.sent)
        for position in range(start, len(conversation.plain)):
            who = self._comparison.key(identity(conversation.plain[position]))
            level = [child for node in level for child in self._children(node, who, conversation)]
            if not level:
                break
            answers = [node for node in level if self.forest.nodes[node].sampled]
            if answers:
                found = self._answer_to(conversation, answers, position), position + 1
        if tip is not None and any(message["role"] == "assistant" for message in conversation.plain[found[1] :]):
            return self._last_answer(conversation, None)  # it may lie on another branch
        return found

    def _answer_to(self, conversation: Conversation, answers: Sequence[int], position: int) -> int:
        """Choose which of several equal answers the agent continues from: its own, with the reasoning that it sent."""
        thought = conversation.plain[position].get("reasoning_content")

        def fitness(answer: int) -> tuple[bool, bool, int]:
            node = self.forest.nodes[answer]
            return node.agent == conversation.agent, node.reasoning == thought, answer

        return max(answers, key=fitness)

    def _children(self, node: int | None, who: Identity, conversation: Conversation) -> list[int]:
        """Return the recorded children that equal this message.

        An agent may add its own name to an answer of the model, and omit the reasoning; another agent with omitted
        reasoning cannot be distinguished from it, and is excluded.
        """
        found = self._index.get(self._key(node, who, conversation), [])
        if who.role == "assistant" and who.name is not None:
            unnamed = self._index.get(self._key(node, who._replace(name=None), conversation), [])
            found = [*found, *(child for child in unnamed if self.forest.nodes[child].sampled)]
        return [child for child in found if who.reasoning or not self._is_anothers_thought(child, conversation.agent)]

    def _is_anothers_thought(self, answer: int, agent: str) -> bool:
        node = self.forest.nodes[answer]
        return node.sampled and bool(node.reasoning) and node.agent != agent

    def _path(self, answer: int | None, tip: Tip | None) -> tuple[list[Message], list[int]]:
        """The messages and the tokens up to an answer."""
        if tip is not None and tip.answer == answer:
            return tip.path, tip.path_ids
        return [message_of(node) for node in self.forest.path(answer)], self.forest.path_ids(answer)

    def _extension(
        self, answer: int | None, known: list[Message], new: list[Message], tools: Sequence[Tool]
    ) -> Rendered | None:
        if answer is None:
            return None
        return self._renderer.extend(known, self.forest.nodes[answer].sampled_ids, new, tools)

    def _read_all(self, pending: PendingCall) -> int | None:
        """Record the messages of a call that were not recorded before, and return the last one's node."""
        parent = pending.parent
        for position in range(len(pending.new)):
            parent = self._read(parent, pending, position)
        return parent

    def _read(self, parent: int | None, pending: PendingCall, position: int) -> int:
        """The node of a message that the model read, recorded now if it was not before."""
        message, token_ids = pending.new[position], pending.rendered.deltas[position]
        who = identity(message)
        for known in self._index.get(self._key(parent, self._comparison.key(who), pending.conversation), ()):
            node = self.forest.nodes[known]
            written_alike = node.tool_calls == message.get("tool_calls", [])  # a call's tokens may follow the message's
            if not node.sampled and node.token_ids == token_ids and written_alike:
                if not self._comparison.exact:
                    self._note(node, message)
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
            images=message.get("images", []),
            fork_cause=self._cause(parent, pending, pending.new[position:]),
        )
        if parent is None:
            node.tools = copy.deepcopy(list(pending.tools))
        self._append(node, {who}, pending)
        return node.node_id

    def _append(self, node: MessageNode, known_as: set[Identity], pending: PendingCall) -> None:
        self.forest.nodes.append(node)
        self._newest_child[node.parent] = node.node_id
        self._branches[node.parent, node.agent].append(node.node_id)
        for who in {self._comparison.key(who) for who in known_as}:
            self._index.setdefault(self._key(node.parent, who, pending.conversation), []).append(node.node_id)

    def _key(self, parent: int | None, who: Identity, conversation: Conversation) -> _Key:
        counts = parent is None and not self._comparison.ignore_tools
        return parent, conversation.tools_key if counts else "", who

    def _count_relaxed(self, pending: PendingCall) -> None:
        """Compare exactly messages that were treated as equal."""
        path = self.forest.path(pending.parent)
        for node, message in zip(path, pending.conversation.plain, strict=False):
            self._note(node, message)
        tools_key = pending.conversation.tools_key
        if path and tools_key_of(path[0].tools) != tools_key:
            self._passed_over.add((path[0].node_id, tools_key))

    def _note(self, node: MessageNode, message: Message) -> None:
        recorded, sent = identity(message_of(node)), identity(message)
        if node.sampled:  # agents may name an answer, and leave out the thought
            recorded, sent = recorded._replace(name=None, reasoning=None), sent._replace(name=None, reasoning=None)
        if recorded != sent:
            self._passed_over.add((node.node_id, sent))

    def _cause(self, parent: int | None, pending: PendingCall, new: Sequence[Message]) -> str | None:
        """Return why another child of `parent` is needed; None for its first one."""
        if parent not in self._newest_child:
            return None
        own = self._branches.get((parent, pending.agent), ())
        way = self._way_on(own[-1] if own else self._newest_child[parent])
        if all(node.agent != pending.agent for node in way):
            return "another agent"
        if not new and way[0].sampled:
            return "sampled again"
        if parent is None and tools_key_of(way[0].tools) != pending.conversation.tools_key:
            return "tools changed"
        if pending.rewritten:
            return REWRITTEN
        added = [identity(message) for message in new]
        cause = fork_cause(_identities(way), added)
        if cause not in VAGUE:
            return cause
        others = (fork_cause(_identities(self._way_on(branch)), added) for branch in reversed(list(own)[:-1]))
        return next((other for other in others if other not in VAGUE), cause)

    def _way_on(self, node: int) -> list[MessageNode]:
        """Yield the nodes from a node along its newest descendants."""
        way: list[MessageNode] = []
        following: int | None = node
        while following is not None:
            way.append(self.forest.nodes[following])
            following = self._newest_child.get(following)
        return way


def _identities(nodes: Sequence[MessageNode]) -> list[Identity]:
    return [identity(message_of(node)) for node in nodes]
