"""Re-merging of a recorded episode: its calls are passed to a fresh tracker, in the order of their answers.

With the policy of the recording, the result equals the recorded forest; with another, it is what that policy would have
recorded of the same conversations. No model is called.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from astune.context_tracker.pending import PendingCall
from astune.context_tracker.tracker import ContextTracker
from astune.renderers.messages import EXACT, Comparison, message_of
from astune.renderers.renderer import Renderer
from astune.schema import Forest, MessageNode, is_tool_call_id, message_of_call

_NO_BOUND = 1 << 62


def merged_again(forest: Forest, renderer: Renderer, comparison: Comparison = EXACT) -> Forest:
    """The forest of the same calls under `comparison`.

    Raises:
        WorkflowError: a recorded conversation cannot be rendered any more.
    """
    day = date.fromisoformat(forest.day) if forest.day is not None else None
    tracker = ContextTracker(renderer, _NO_BOUND, comparison, day=day)
    completions = {node.node_id: completion for node, _, completion in forest.replay()}
    for node in forest.nodes:
        completion = completions.get(node.node_id)
        if completion is not None:
            tracker.commit(_prepared(tracker, forest, node), completion, node.constraint)
        elif not _is_followed(forest, node):  # another model answered
            read = forest.path(node.node_id)
            tracker.read([message_of(message) for message in read], read[0].tools, agent=node.agent)
    return tracker.forest


def _is_followed(forest: Forest, node: MessageNode) -> bool:
    """Return whether the next message that was recorded continues from this one."""
    return node.node_id + 1 < len(forest.nodes) and forest.nodes[node.node_id + 1].parent == node.node_id


def _prepared(tracker: ContextTracker, forest: Forest, node: MessageNode) -> PendingCall:
    """The call that `node` answers, with its position and ids, which also depend on requests that were not recorded."""
    read = forest.path(node.parent)
    grammar = node.constraint.grammar if node.constraint is not None else None
    pending = tracker.prepare(
        [message_of(message) for message in read],
        read[0].tools if read else (),
        agent=node.agent,
        trainable=node.trainable,
        grammar=grammar if grammar is not None and grammar.is_literal else None,
        stop=(node.stopped_by,) if node.stopped_by else (),
    )
    ids = [call["id"] for call in node.tool_calls if is_tool_call_id(call["id"])]
    call_seed = message_of_call(ids[0]) if ids else pending.call_seed
    return replace(pending, asked_after=node.asked_after, call_seed=call_seed)
