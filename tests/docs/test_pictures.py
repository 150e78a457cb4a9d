"""The pictures show what was recorded: all of it, once, readable, and within the paper."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from xml.etree import ElementTree

import pytest
from episode_pictures import forest_svg, timelines_svg
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_picture import NamedRow, tree_svg

from astune.schema import Forest, MessageNode
from astune.trainer.trie import build_tree

SVG = "{http://www.w3.org/2000/svg}"
CAUSES = ("message edited", "sampled again", "another agent", "template rewrote history")

messages = st.lists(
    st.tuples(
        st.integers(0, 1 << 16),
        st.sampled_from(["system", "user", "assistant", "tool", "a-role-that-nobody-has-ever-heard-of"]),
        st.text(max_size=300).filter(lambda text: text not in CAUSES),  # causes are counted by their texts
        st.sampled_from(["solver", "an agent with a very long name indeed", ""]),
        st.integers(0, 5000),
        st.integers(0, 5000),
        st.booleans(),
    ),
    max_size=30,
)


@dataclass(frozen=True)
class Area:
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Area) -> bool:
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return across > 0.02 and down > 0.02

    def holds(self, other: Area) -> bool:
        return (
            self.left <= other.left + 0.02
            and self.top <= other.top + 0.02
            and self.right >= other.right - 0.02
            and self.bottom >= other.bottom - 0.02
        )


def node(at: int, parent: int | None, role: str, content: str, *, read: int, said: int = 0, **more) -> MessageNode:
    """A message of `read` tokens, and `said` sampled ones behind them."""
    given = {"agent": "solver", "logprobs": [-0.5] * said if said else None, "trainable": said > 0} | more
    return MessageNode(at, parent, role, content, [at] * (read + said), **given)


@pytest.fixture
def forest() -> Forest:
    """A question asked twice, then edited; a helper that is not trained shares the beginning."""
    return Forest(
        [
            node(0, None, "system", "Use <b>tools</b> & add.", read=60),
            node(1, 0, "user", "What is 1 + 2?", read=12),
            node(2, 1, "assistant", "It is 3.", read=4, said=9),
            node(3, 1, "assistant", "Three.", read=4, said=6, fork_cause="sampled again"),
            node(4, 0, "user", "What is 1 + 2 now?", read=14, fork_cause="message edited"),
            node(5, 4, "assistant", "Still 3.", read=4, said=8),
            node(6, 5, "user", "And now?", read=8),
            node(7, 6, "assistant", "3 again", read=4, said=2),
            node(8, 0, "user", "Advise.", read=9, agent="helper", fork_cause="another agent"),
            node(9, 8, "assistant", "Do.", read=4, said=30, agent="helper", trainable=False),
        ]
    )


def drawn_forest(drawn: list[tuple[int, str, str, str, int, int, bool]]) -> Forest:
    nodes: list[MessageNode] = []
    for at, (parent, role, content, agent, read, said, trainable) in enumerate(drawn):
        above = parent % (at + 1) - 1  # any earlier message, or none
        has_sibling = any(other.parent == (above if above >= 0 else None) for other in nodes)
        more = {"agent": agent, "trainable": trainable, "fork_cause": CAUSES[at % 4] if has_sibling else None}
        nodes.append(node(at, above if above >= 0 else None, role, content, read=read, said=said, **more))
    return Forest(nodes)


def read(svg: str) -> ElementTree.Element:
    """Parse, and check what holds for every picture: all is on the paper, and nothing is drawn over anything."""
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert width <= 900
    paper = Area(0, 0, width, height)
    words = [area_of_text(text) for text in root.iter(f"{SVG}text")]
    kinds = {rect.get("class") for rect in root.findall(f"{SVG}rect")} - {None}
    boxes = {kind: [area_of(rect) for rect in root.findall(f"{SVG}rect[@class='{kind}']")] for kind in kinds}
    assert all(paper.holds(area) for area in [*words, *(area for kind in boxes.values() for area in kind)])
    assert not [
        pair for areas in [words, *boxes.values()] for pair in combinations(areas, 2) if pair[0].overlaps(pair[1])
    ]
    every_box = [area for kind in boxes.values() for area in kind]
    assert all(box.holds(word) or not box.overlaps(word) for box in every_box for word in words)
    assert all(float(text.attrib["font-size"]) >= 11 for text in root.iter(f"{SVG}text"))
    return root


def area_of(rect: ElementTree.Element) -> Area:
    x, y, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
    return Area(x, y, x + width, y + height)


def area_of_text(text: ElementTree.Element) -> Area:
    """At 0.6 of its size a character, as in the common monospaced fonts; letters reach below the line by a fifth."""
    x, y, size = (float(text.attrib[key]) for key in ("x", "y", "font-size"))
    width = 0.6 * size * len(text.text or "") if (text.text or "").isascii() else 0
    left = x - width if text.attrib["text-anchor"] == "end" else x
    return Area(left, y - 0.8 * size, left + width, y + 0.2 * size)


def texts(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def count(root: ElementTree.Element, kind: str) -> int:
    return len(root.findall(f"{SVG}rect[@class='{kind}']"))


def test_a_forest_shows_each_message_once_and_each_cause_where_it_is(forest):
    root = read(forest_svg(forest))
    shown = Counter(texts(root))
    assert count(root, "message") == len(forest.nodes)
    assert all(shown[str(each.node_id)] == 1 and shown[each.content] == 1 for each in forest.nodes)
    assert {cause: shown[cause] for cause in CAUSES} == dict.fromkeys(CAUSES[:3], 1) | {CAUSES[3]: 0}
    edges = root.findall(f"{SVG}polyline")
    assert len(edges) == sum(each.parent is not None for each in forest.nodes)


def test_a_forests_numbers_are_those_of_its_messages(forest):
    shown = texts(read(forest_svg(forest)))
    said = [int(found[1]) for text in shown if (found := re.fullmatch(r"\d+ tokens, (\d+) sampled", text))]
    all_tokens = [int(found[1]) for text in shown if (found := re.match(r"(\d+) tokens\b", text))]
    assert shown[0] == f"10 messages, {sum(all_tokens)} tokens, {sum(said)} of them sampled"
    assert (sum(all_tokens), sum(said)) == (178, 55)


def test_what_was_sampled_is_told_apart_by_more_than_its_colour(forest):
    root = read(forest_svg(forest))
    bars = {rect.attrib["y"] for rect in root.findall(f"{SVG}rect") if rect.get("height") == "4"}
    boxes = [area_of(rect) for rect in root.findall(f"{SVG}rect[@class='message']")]
    assert sum(any(abs(box.bottom - 4 - float(y)) < 0.1 for y in bars) for box in boxes) == 5


def test_text_is_escaped_and_what_cannot_be_drawn_is_replaced(forest):
    forest.nodes[1].content = '</text><script>alert("&")</script>'
    forest.nodes[4].content = "a\x00b\x1b[31mc\u202ed\ud800e\n\nf"
    forest.nodes[6].content = None
    forest.nodes[7].content, forest.nodes[7].tool_calls = "", [{"function": {"name": "add", "arguments": '{"a": 1}'}}]
    root = read(forest_svg(forest))
    assert not list(root.iter(f"{SVG}script"))
    assert {forest.nodes[1].content, "a�b�[31mc�d�e f", 'add({"a": 1})'} <= set(texts(root))


def test_a_picture_fetches_nothing(forest):
    for svg in (forest_svg(forest), timelines_svg(forest.timelines())):
        assert set(re.findall(r"https?://[^\s\"']+", svg)) == {"http://www.w3.org/2000/svg"}
        assert not re.search(r"href|@import|<image|<style|<script", svg)


def test_timelines_are_to_scale_and_say_why_tokens_are_masked(forest):
    timelines = forest.timelines()
    root = read(timelines_svg(timelines))
    shown = texts(root)
    spans = [area_of(rect) for rect in root.findall(f"{SVG}rect[@class='span']")]
    lengths = [span.end - span.start for timeline in timelines for span in timeline.spans]
    scale = (spans[0].right - spans[0].left) / lengths[0]
    assert [area.right - area.left for area in spans] == pytest.approx([n * scale for n in lengths], abs=0.02)
    assert {"masked: not a training target", "read", "trained"} <= set(shown)
    assert "3 solver, 100 tokens: 90 read, 10 trained" in shown
    assert "4 helper, 103 tokens: 73 read, 0 trained, 30 masked" in shown


def test_every_sampled_token_is_in_one_account(forest):
    forest.nodes.append(node(10, 7, "user", "x", read=3))
    forest.nodes.append(node(11, 7, "user", "y", read=3, fork_cause="message edited"))
    shown = texts(read(timelines_svg(forest.timelines())))
    accounts = shown[shown.index("Every sampled token, once:") + 1 :]
    assert accounts == ["25 trained", "30 masked: not a training target"]
    assert "masked: trained in another timeline" in shown
    assert shown[0] == "5 timelines, 55 sampled tokens, 25 of them trained"


def test_a_tree_is_drawn_as_the_trainer_lays_it_out():
    sequences = [[1] * 50 + [2] * 30 + [3] * 20, [1] * 50 + [2] * 30 + [4] * 25, [1] * 50 + [5] * 40]
    tree = build_tree(sequences)
    rows = [NamedRow(f"1.{at}", places.tolist()) for at, places in enumerate(tree.rows)]
    root = read(tree_svg(tree.segments, rows, [90, 100, 105, 90]))
    assert count(root, "segment") == len(tree.segments) == 5
    shown = texts(root)
    assert shown[0] == "3 timelines of 295 tokens as a tree of 165"
    labels = [re.fullmatch(r"(\d+)(?: tokens)?(?: ×(\d))?", text) for text in shown[: shown.index("the tree") - 4]]
    found = [(int(label[1]), int(label[2] or 1)) for label in labels if label]
    assert sorted(found) == [(20, 1), (25, 1), (30, 2), (40, 1), (50, 3)]
    assert (sum(n for n, _ in found), sum(n * times for n, times in found)) == (165, 295)
    assert {"420 tokens", "295 tokens", "165 tokens", "timeline 1.0", "timeline 1.1", "timeline 1.2"} <= set(shown)
    areas = [area_of(rect) for rect in root.findall(f"{SVG}rect[@class='segment']")]
    for segment, area in zip(tree.segments, areas, strict=True):
        assert segment.parent is None or areas[segment.parent].right == pytest.approx(area.left, abs=0.02)


@settings(max_examples=examples(60))
@given(drawn=messages)
def test_any_forest_fits_on_the_paper(drawn):
    forest = drawn_forest(drawn)
    root = read(forest_svg(forest))
    assert count(root, "message") == len(forest.nodes)
    causes = Counter(each.fork_cause for each in forest.nodes if each.fork_cause)
    assert {cause: n for cause, n in Counter(texts(root)).items() if cause in CAUSES} == causes
    read(timelines_svg(forest.timelines()))


@settings(max_examples=examples(60))
@given(sequences=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=60), min_size=1, max_size=12))
def test_any_tree_fits_on_the_paper(sequences):
    tree = build_tree(sequences)
    rows = [NamedRow(f"sequence {at}", places.tolist()) for at, places in enumerate(tree.rows)]
    root = read(tree_svg(tree.segments, rows, [len(sequence) for sequence in sequences]))
    assert count(root, "segment") == len(tree.segments)


@pytest.mark.slow
def test_a_hundred_nested_forks_fit_on_the_paper():
    forest = Forest([node(0, None, "user", "a beginning", read=5)])
    for at in range(1, 201, 2):
        parent = at - 2 if at > 1 else 0
        forest.nodes.append(node(at, parent, "user", "on", read=3))
        forest.nodes.append(node(at + 1, parent, "user", "edited", read=3, fork_cause="message edited"))
    assert count(read(forest_svg(forest)), "message") == 201


def test_nothing_recorded_is_an_empty_picture():
    assert texts(read(forest_svg(Forest())))[0] == "0 messages, 0 tokens, 0 of them sampled"
    assert texts(read(timelines_svg([])))[0] == "0 timelines, 0 sampled tokens, 0 of them trained"
    assert texts(read(tree_svg([], [], [])))[0] == "0 timelines of 0 tokens as a tree of 0"
