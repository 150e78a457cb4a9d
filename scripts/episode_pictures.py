"""Pictures of what an episode recorded, as SVG: its forest of messages, and its timelines.

They show every message and every token, and know nothing of how the tokens are trained; see `tree_picture.py` for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle

from svg_drawing import (
    BASELINE,
    BOX,
    CAUSE,
    FAINT,
    INK,
    MARGIN,
    MASKED,
    READ,
    SAMPLED,
    SIZE,
    TOP,
    WIDTH,
    Drawing,
    Look,
    text_width,
)

from astune.schema import Forest, MessageNode, Span, Timeline, trained_and_masked

_INDENT, _MOST_INDENT = 28.0, 400.0


def forest_svg(forest: Forest) -> str:
    """Every message once, below the one that it follows; where a branch begins, its cause stands above it."""
    tokens = sum(len(node.token_ids) for node in forest.nodes)
    drawing = Drawing(f"{len(forest.nodes)} messages, {tokens:,} tokens, {forest.sampled_tokens():,} of them sampled")
    y = drawing.legend(TOP, [(READ, "read by the model"), (SAMPLED, "sampled: written by the model")]) + 8
    levels = _levels(forest)
    step = min(_INDENT, _MOST_INDENT / max([1, *levels.values()]))
    agents = max((text_width(node.agent) for node in forest.nodes), default=0)
    at: dict[int, tuple[float, float]] = {}
    for node_id, level in levels.items():
        node = forest.nodes[node_id]
        x = MARGIN + level * step
        if node.fork_cause is not None:
            drawing.text(x + 2, y + SIZE, node.fork_cause, colour=CAUSE, bold=True)
            y += SIZE + 6
        if node.parent is not None:
            _edge(drawing, at[node.parent], (x, y), step)
        _message(drawing, node, x, y, min(agents, 110.0))
        at[node_id] = x, y
        y += BOX + 8
    return drawing.svg()


def _levels(forest: Forest) -> dict[int, int]:
    """The indentation of each message, from top to bottom: one further where its branch begins."""
    children: dict[int | None, list[int]] = {}
    for node in forest.nodes:
        children.setdefault(node.parent, []).append(node.node_id)
    levels: dict[int, int] = {}
    waiting = [(node_id, 0) for node_id in reversed(children.get(None, []))]
    while waiting:
        node_id, level = waiting.pop()
        levels[node_id] = level
        following = children.get(node_id, [])
        level += len(following) > 1
        waiting += [(child, level) for child in reversed(following)]
    return levels


def _edge(drawing: Drawing, parent: tuple[float, float], child: tuple[float, float], step: float) -> None:
    if parent[0] == child[0]:
        x = parent[0] + step / 2
        drawing.line((x, parent[1] + BOX), (x, child[1]))
    else:
        x, y = parent[0] + step / 2, child[1] + BOX / 2
        drawing.line((x, parent[1] + BOX), (x, y), (child[0], y))


def _message(drawing: Drawing, node: MessageNode, x: float, y: float, agent_width: float) -> None:
    drawing.box(x, y, WIDTH - MARGIN - x, BOX, SAMPLED if node.sampled else READ, "message")
    sampled = f", {node.n_sampled} sampled" if node.sampled else ""
    count = f"{len(node.token_ids)} tokens{sampled}"
    right = WIDTH - MARGIN - 8
    drawing.text(right, y + BASELINE, count, anchor="end")
    end = right - text_width(count) - 12
    columns = [
        (str(node.node_id), text_width("00"), FAINT, False),
        (node.role, text_width("assistant"), INK, True),
        (node.agent, agent_width, FAINT, False),
        (_words(node), WIDTH, INK, False),
    ]
    x += 8
    for text, width, colour, bold in columns:
        drawing.text(x, y + BASELINE, text, room=min(width, end - x), colour=colour, bold=bold)
        x += width + 10


def _words(node: MessageNode) -> str:
    """The beginning of a message; its calls where it has no text."""
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in node.tool_calls]
    return " ".join([str(node.content or ""), *calls])


def timelines_svg(timelines: Sequence[Timeline]) -> str:
    """Each timeline as a bar to scale, the spans of its messages one after another."""
    trained, masked = trained_and_masked(timelines)
    n_sampled = trained + masked.total()
    look_of = dict(zip(_reasons(timelines), cycle(MASKED), strict=False))
    drawing = Drawing(f"{len(timelines)} timelines, {n_sampled:,} sampled tokens, {trained:,} of them trained")
    entries = [(READ, "read"), (SAMPLED, "trained")]
    y = drawing.legend(TOP, [*entries, *((look, f"masked: {reason}") for reason, look in look_of.items())]) + 8
    longest = max((len(timeline.token_ids) for timeline in timelines), default=0)
    scale = (WIDTH - 2 * MARGIN) / max(1, longest)
    for number, timeline in enumerate(timelines, start=1):
        drawing.text(MARGIN, y + SIZE, f"{number} {timeline.agent}, {_sum(timeline)}")
        y += SIZE + 8
        for span in timeline.spans:
            look = READ if not span.sampled else SAMPLED if span.mask_reason is None else look_of[span.mask_reason]
            _span(drawing, span, y, scale, look)
        y += BOX + 14
    for text in _balance(trained, masked):
        drawing.text(MARGIN, y + SIZE, text, colour=FAINT)
        y += SIZE + 6
    return drawing.svg()


def _reasons(timelines: Sequence[Timeline]) -> list[str]:
    spans = (span for timeline in timelines for span in timeline.spans)
    return list(dict.fromkeys(span.mask_reason for span in spans if span.mask_reason is not None))


def _sum(timeline: Timeline) -> str:
    n_sampled = sum(span.end - span.start for span in timeline.spans if span.sampled)
    n_read, n_masked = len(timeline.token_ids) - n_sampled, n_sampled - timeline.n_trained
    masked = f", {n_masked:,} masked" if n_masked else ""
    return f"{len(timeline.token_ids):,} tokens: {n_read:,} read, {timeline.n_trained:,} trained{masked}"


def _balance(trained: int, masked: Counter[str]) -> Iterator[str]:
    yield "Every sampled token, once:"
    yield f"{trained:,} trained"
    for reason, n_tokens in masked.items():
        yield f"{n_tokens:,} masked: {reason}"


def _span(drawing: Drawing, span: Span, y: float, scale: float, look: Look) -> None:
    n_tokens = span.end - span.start
    x, width = MARGIN + span.start * scale, n_tokens * scale
    hover = f"message {span.node_id}, {span.role}, {span.agent}: {n_tokens} tokens, {span.mask_reason or ''}"
    drawing.box(x, y, width, BOX, look, "span", hover.rstrip(", "))
    names = (f"{span.node_id} {span.role} {n_tokens}", f"{span.node_id} {span.role}", str(span.node_id))
    drawing.label(x, y, width, *names)
