"""Verification of a stored forest: every call is rendered again from its messages.

Each prompt must match token for token: the template's delta after the last answer on its path, or the whole path if
there is none. Sampled tokens are used unchanged, since they cannot be rendered.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from math import isfinite

from astune.renderers.beginnings import common_beginning
from astune.renderers.messages import message_of
from astune.renderers.renderer import Renderer, Reply
from astune.renderers.stop_sequences import before
from astune.renderers.text_renderer import is_in_characters
from astune.schema import AstuneError, Forest, MessageNode


def faults(forest: Forest, renderer: Renderer) -> Iterator[str]:
    """Return the errors of a forest, one sentence each; empty if the replay matches."""
    if forest.day is not None:
        renderer = renderer.on(date.fromisoformat(forest.day))
    for position, node in enumerate(forest.nodes):
        if node.node_id != position or (node.parent is not None and not 0 <= node.parent < position):
            yield f"node {position} precedes its parent, or has another number"
            return
    trained = [span.node_id for t in forest.timelines() for span in t.spans if span.sampled and not span.mask_reason]
    if len(trained) != len(set(trained)):
        yield "an answer is trained in more than one timeline"
    for node in forest.nodes:
        if node.sampled:
            yield from _faults_of_call(forest, node, renderer)


def _faults_of_call(forest: Forest, node: MessageNode, renderer: Renderer) -> Iterator[str]:
    logprobs = node.logprobs or []
    known = not is_in_characters(forest)
    if len(logprobs) > len(node.token_ids) or (known and not all(isfinite(value) and value <= 0 for value in logprobs)):
        yield f"node {node.node_id}: its log-probabilities are none"
    path = forest.path(node.parent)
    if not path:
        yield f"node {node.node_id}: an answer to nothing"
        return
    if node.constraint is not None and node.constraint.grammar.is_literal:
        reply = Reply(renderer.text(node.sampled_ids))
    else:
        prompt_ids = [*forest.path_ids(node.parent), *node.prompt_delta]
        reply = renderer.parse(node.sampled_ids, prompt_ids, path[0].tools)
    reply = before(reply, node.stopped_by)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in node.tool_calls]
    if Reply(node.content, node.reasoning, calls, node.malformed_calls) != reply:
        yield f"node {node.node_id}: its tokens read {reply.content[:60]!r}, and the record has {node.content[:60]!r}"
    answered = max((at for at, read in enumerate(path) if read.sampled), default=-1)
    messages = [message_of(read) for read in path]
    recorded = [*(token for read in path[answered + 1 :] for token in read.token_ids), *node.prompt_delta]
    try:
        if answered < 0:
            rendered = renderer.render(messages, path[0].tools)
        else:
            history, new = messages[: answered + 1], messages[answered + 1 :]
            rendered = renderer.extend(history, path[answered].sampled_ids, new, path[0].tools)
    except AstuneError as cause:
        yield f"node {node.node_id}: its conversation cannot be rendered: {cause}"
        return
    if rendered is None:
        yield f"node {node.node_id}: the template rewrites the answer that its prompt extends"
    elif rendered.token_ids != recorded:
        at = common_beginning(rendered.token_ids, recorded)
        yield (
            f"node {node.node_id}: its prompt differs from token {at} on: recorded "
            f"{renderer.decode(recorded[at : at + 8])!r}, rendered {renderer.decode(rendered.token_ids[at : at + 8])!r}"
        )
