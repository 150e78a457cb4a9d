"""Re-merging of a recorded episode: its calls are passed to a fresh tracker, in the order of their answers.

With the policy of the recording, the result equals the recorded forest; with another, it is what that policy would have
recorded of the same conversations. No model is called.
"""

from __future__ import annotations

from datetime import date

from astune.context_tracker.tracker import ContextTracker
from astune.renderers.messages import EXACT, Comparison, message_of
from astune.renderers.renderer import Renderer
from astune.schema import Forest

_NO_BOUND = 1 << 62


def merged_again(forest: Forest, renderer: Renderer, comparison: Comparison = EXACT) -> Forest:
    """The forest of the same calls under `comparison`.

    Raises:
        WorkflowError: a recorded conversation cannot be rendered any more.
    """
    day = date.fromisoformat(forest.day) if forest.day is not None else None
    tracker = ContextTracker(renderer, _NO_BOUND, comparison, day=day)
    for node, _, completion in forest.replay():
        read = forest.path(node.parent)
        literal = node.constraint is not None and not node.tool_calls
        pending = tracker.prepare(
            [message_of(message) for message in read],
            read[0].tools if read else (),
            agent=node.agent,
            trainable=node.trainable,
            grammar=node.constraint.grammar if node.constraint is not None and literal else None,
            stop=(node.stopped_by,) if node.stopped_by else (),
        )
        tracker.commit(pending, completion, node.constraint)
    return tracker.forest
