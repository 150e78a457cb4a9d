"""The record of an episode is lossless, whatever is in it (law 2)."""

import base64
import math
from typing import Any

import numpy as np
import pytest
import zstandard
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astune.runs.wire import from_json, pack, snapshot, to_json, unpack
from astune.schema import Constraint, Episode, Forest, Grammar, MessageNode, Reward, RunStoreError, Task

any_text = st.text(st.characters(codec=None), max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text | st.binary(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(any_text | st.integers() | st.sampled_from(["$float", "$dict", "$repr"]), inner, max_size=3)
    ),
    max_leaves=8,
)
payloads = st.dictionaries(any_text, values, max_size=3)


constraints = st.builds(
    Constraint,
    st.builds(Grammar, st.sampled_from(["json_schema", "regex", "lark"]), any_text),
    st.lists(st.integers(0, 200_000), max_size=3).map(tuple),
)


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    nodes: list[MessageNode] = []
    for node_id in range(draw(st.integers(0, 6))):
        token_ids = draw(st.lists(st.integers(0, 200_000), max_size=8))
        sampled = draw(st.booleans())
        nodes.append(
            MessageNode(
                node_id=node_id,
                parent=draw(st.none() | st.integers(0, node_id - 1)) if node_id else None,
                role=draw(st.sampled_from(["system", "user", "assistant", "tool"])),
                content=draw(values),
                token_ids=token_ids,
                agent=draw(any_text),
                name=draw(st.none() | any_text),
                tool_calls=draw(st.lists(payloads, max_size=2)),
                tool_call_id=draw(st.none() | any_text),
                images=draw(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["a" * 64, "b" * 64])), max_size=2)),
                logprobs=[draw(st.floats(max_value=0, allow_nan=False)) for _ in token_ids] if sampled else None,
                finish_reason=draw(st.sampled_from(["stop", "length"])) if sampled else None,
                weights_version=draw(st.integers(0, 10**6)) if sampled else None,
                trainable=draw(st.booleans()),
                fork_cause=draw(st.none() | any_text),
                constraint=draw(st.none() | constraints) if sampled else None,
            )
        )
    return Forest(nodes)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    finer = st.just({}) | st.fixed_dictionaries({"per_target": st.dictionaries(any_text, finite, max_size=3)})
    finer |= st.fixed_dictionaries({"per_turn": st.lists(finite, max_size=3)})
    rewards = st.builds(
        lambda more, **known: Reward(**known, **more),
        finer,
        raw_reward=finite,
        is_success=st.booleans(),
        metadata=payloads,
    )
    reward = draw(st.none() | rewards)
    return Episode(
        episode_id=draw(any_text),
        task=Task(task_id=draw(any_text), main_query=draw(any_text) or "q", metadata=draw(payloads)),
        split=draw(st.sampled_from(["train", "validation"])),
        step=draw(st.integers(0, 10**6)),
        repeat=draw(st.integers(0, 100)),
        attempt=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 2**64 - 1)),
        forest=draw(forests()),
        status=draw(st.sampled_from(["success", "failed", "truncated", "error"])),
        reward=reward,
        error=draw(st.none() | any_text),
        metrics=draw(st.dictionaries(any_text, st.floats(allow_nan=False), max_size=3)),
        timings=draw(st.dictionaries(any_text, finite, max_size=3)),
        judge_inputs=draw(payloads),
        targets=draw(st.dictionaries(any_text, any_text, max_size=3)),
        constrained_tokens=draw(st.sampled_from(["replay", "mask"])),
    )


def through_the_wire(episode: Episode) -> Episode:
    return unpack(pack(snapshot(episode), zstandard.ZstdCompressor()))


@pytest.mark.slow
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(episodes())
def test_any_episode_comes_back_as_it_was(episode: Episode) -> None:
    back = through_the_wire(episode)
    assert back == episode
    assert list(back.forest.replay()) == list(episode.forest.replay())


@given(values)
def test_any_value_that_json_cannot_hold_is_wrapped_and_unwrapped(value: Any) -> None:
    assert from_json(to_json(value)) == value


def test_numbers_that_are_not_finite_survive(episode) -> None:
    one = episode()
    one.metrics = {"nan": math.nan, "inf": math.inf}
    one.forest.nodes[1].logprobs = [-math.inf, math.nan, *[0.0] * 18]
    back = through_the_wire(one)
    assert math.isnan(back.metrics["nan"])
    assert back.metrics["inf"] == math.inf
    assert back.forest.nodes[1].logprobs is not None
    assert back.forest.nodes[1].logprobs[0] == -math.inf


def test_what_no_format_can_hold_is_kept_as_its_text(episode) -> None:
    one = episode()
    cyclic: dict[str, Any] = {"self": None}
    cyclic["self"] = cyclic
    one.judge_inputs = {"object": object, "set": {1}, "numpy": np.float32(0.5), "cyclic": cyclic}
    back = through_the_wire(one)
    assert back.judge_inputs["object"] == "<class 'object'>"
    assert back.judge_inputs["set"] == "{1}"
    assert back.judge_inputs["numpy"] == 0.5
    assert "contains itself" in back.judge_inputs["cyclic"]["self"]


def test_later_changes_of_a_dictionary_do_not_reach_the_record(episode) -> None:
    one = episode()
    data = snapshot(one)
    one.judge_inputs["final_answer"] = "changed"
    one.forest.nodes[0].content = "changed"
    assert unpack(pack(data, zstandard.ZstdCompressor())).judge_inputs == {"final_answer": "\\boxed{4}"}


BEFORE_GRAMMARS = (
    "KLUv/WBsAf0KADaXQB5Ab9tH1d8tNpE9E6Y7kijGMKCblsvDjuBnMgwDAAE0ADcANwDHM6vDIfHVWepsPiLUHVV+kXbnkVHv1Kf7tBvL7as3gx4f"
    "3wT06g5b6jhmT4+Neme07vFLusdpuqhnp5Oty7Wr67P0ojQ9MhbqrE8ya7SaNXa8YgAYXN2yKk1WYxkd3xd1CWcfIUhq6ut2NU92027OcfwqS1dX"
    "yG3TzXdk2i8L1pZeY0sfR4o8jUWsj+xg2/ps9lp9R5W21WJ2ZATNquQ6m5UTY1KokUhgvEpZ3JCHaeX455qv3hyn7oIwa+xhGKBBwAQabt/joCMj"
    "gQhsCt2ymTEn0+DEOKChqcT1MSQgMESApFF6aGSQGg0mG7wVgAFoVlC/GiFyruNyNgPVYIBgNQO7R5AP/P5mYxUeRQQBIJUh1MPDyUMj0YLoCBTZ"
    "WJhGeIkoMdgbgIwAaJ0A68LGzHre6FihDA=="
)
"""An episode as it was written before grammars were recorded."""


def test_an_episode_recorded_before_there_were_grammars_is_read() -> None:
    old = unpack(base64.b64decode(BEFORE_GRAMMARS))
    assert old.constrained_tokens == "replay"
    assert [node.constraint for node in old.forest.nodes] == [None, None]
    [timeline] = old.timelines
    assert timeline.token_ids == [5, 6, 1, 7, 9]
    assert timeline.loss_mask == [False, False, False, True, True]


def test_a_damaged_record_and_a_newer_format_are_named(episode) -> None:
    with pytest.raises(RunStoreError, match="damaged"):
        unpack(b"no zstd")
    with pytest.raises(RunStoreError, match=r"format 99.*upgrade"):
        unpack(pack(snapshot(episode()) | {"format": 99}, zstandard.ZstdCompressor()))
