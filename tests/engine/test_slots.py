"""The cache of keys and values: whatever is shared, moved or evicted, a slot holds what its tokens say."""

from __future__ import annotations

import random
from array import array
from itertools import takewhile

import pytest
import torch
from torch import Tensor

from astune.engine.local._prefixes import PrefixIndex, SlotIndex
from astune.engine.local.attention import Alone, Group, Pieces, Rule, Segment, Tokens, Way, way_of
from astune.engine.local.kernels import can_attend
from astune.engine.local.slots import LayerShape, Slot, SlotCache
from astune.engine.local.tree_attention import kernels_for

SHAPES = [LayerShape(2, 4, 4), LayerShape(1, 8, 4)]
BEGINNINGS = [list(range(first, first + length)) for first, length in ((0, 130), (0, 90), (500, 70), (900, 20))]


def cache_of(*, shares: bool, tokens: int = 6000, slots: int = 12) -> SlotCache:
    per_token = sum(shape.kv_heads * (shape.key_dim + shape.value_dim) for shape in SHAPES) * 4
    return SlotCache(
        SHAPES,
        dtype=torch.float32,
        device=torch.device("cpu"),
        budget_bytes=per_token * tokens,
        max_slots=slots,
        shares=shares,
    )


def number_of(tokens: list[int], position: int) -> float:
    """What a model would store: it depends on everything up to the position."""
    return float(hash(tuple(tokens[: position + 1])) % 9973 + 1)


def compute(cache: SlotCache, slot: Slot, tokens: list[int]) -> None:
    """What a forward pass does for new tokens."""
    cache.grow(len(slot.tokens) + len(tokens))
    for token in tokens:
        slot.tokens.append(token)
        position = len(slot.tokens) - 1
        for buffer in (*cache.keys, *cache.values):
            buffer[slot.index, :, position] = number_of(list(slot.tokens), position)


def alike(prompt: list[int], slot: Slot) -> int:
    pairs = zip(prompt, slot.tokens, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def held(cache: SlotCache, slot: Slot, position: int) -> list[float]:
    owner = slot.prefix if slot.prefix is not None and position < slot.shared else slot
    return [float(x) for buffer in (*cache.keys, *cache.values) for x in buffer[owner.index, :, position].flatten()]


@pytest.mark.parametrize(("seed", "shares"), [(0, True), (1, True), (2, True), (0, False), (1, False)])
def test_a_slot_holds_what_its_tokens_say(seed: int, shares: bool) -> None:
    rng = random.Random(seed)
    cache = cache_of(shares=shares)
    shared = 0
    for turn in range(60):
        prompt = rng.choice(BEGINNINGS) + [rng.randrange(3) + 2000 for _ in range(rng.randrange(1, 30))]
        if cache.slots and rng.random() < 0.3:
            prompt = [*rng.choice(cache.slots).tokens, 7, turn]
        source, length = SlotIndex(cache.slots).longest("", array("q", prompt))
        assert length == max((alike(prompt, one) for one in cache.slots), default=0)
        assert source is None or alike(prompt, source) == length
        assert source is None or not source.busy or all(one.busy for one in cache.slots if alike(prompt, one) == length)
        slot = cache.take(source, length, total=len(prompt) + 5, session=str(turn), open_sessions=set())
        if slot is not None:
            compute(cache, slot, [*prompt[len(slot.tokens) :], 3000 + turn])
        for busy in [one for one in cache.slots if one.busy and rng.random() < 0.4]:
            cache.release(busy)
        if rng.random() < 0.05:
            cache.clear(rng.choice(cache.slots))
        shared += sum(one.shared > 0 for one in cache.slots)
        for one in cache.slots if turn % 5 == 0 else ():
            assert one.prefix is None or (one.prefix.prefix is None and one.shared <= len(one.tokens))
            for position in range(0, len(one.tokens), 7):
                assert set(held(cache, one, position)) == {number_of(list(one.tokens), position)}
    assert shared > 20 if shares else shared == 0


def play(cache: SlotCache, session: int, turns: int, open_sessions: set[str], *, total: int) -> None:
    """Turns of a conversation with nothing beside it: 40 tokens each, while up to `total` are set aside."""
    tokens = list(range(1000 * session, 1000 * session + 40 * turns))
    source, shared = SlotIndex(cache.slots).longest("", array("q", tokens))
    slot = cache.take(source, shared, total=total, session=str(session), open_sessions=open_sessions)
    assert slot is not None
    compute(cache, slot, tokens[len(slot.tokens) :])
    cache.release(slot)


@pytest.mark.parametrize("shares", [True, False])
def test_places_are_used_before_conversations_that_ended_are_displaced(shares: bool) -> None:
    cache = cache_of(shares=shares, tokens=8 * 64, slots=8)
    for session in range(8):
        play(cache, session, 1, set(), total=50)
    assert sorted(slot.tokens[0] for slot in cache.slots) == [1000 * session for session in range(8)]


@pytest.mark.parametrize("shares", [True, False])
def test_tokens_that_are_only_set_aside_displace_no_open_conversation(shares: bool) -> None:
    cache = cache_of(shares=shares, tokens=6000, slots=64)
    for session in range(20):
        for turn in (1, 2, 3):
            play(cache, session, turn, {str(number) for number in range(20)}, total=2000)
    assert sorted(len(slot.tokens) for slot in cache.slots) == [120] * 20


def test_places_stay_when_slots_become_longer() -> None:
    """Without kernels each new place is one more copy of all."""
    cache = cache_of(shares=False, tokens=100_000, slots=64)
    moves = 0
    for session in range(40):
        before = cache.keys[0]
        play(cache, session, session // 3 + 1, {str(number) for number in range(40)}, total=700)
        moves += cache.keys[0] is not before
    assert len(cache.slots) == 40
    assert cache.keys[0].shape[0] < 64
    assert moves <= 15, "9 lengths and 6 rounds of places"


def test_prefixes_are_found_without_comparing_with_each() -> None:
    index: PrefixIndex[int] = PrefixIndex()
    sequences = [[1, 2, 3], [1, 2], [1, 2, 4, 5], [2], [1, 2, 3]]
    for number, tokens in enumerate(sequences):
        index.add("", array("q", tokens), number)
    index.add("other", array("q", [9, 9]), 99)
    assert index.longest("", array("q", [1, 2, 9])) == (1, 2)  # it has no others
    assert index.longest("", array("q", [1, 2, 4, 4]))[1] == 3
    assert index.longest("", array("q", [9, 9])) == (None, 0)
    assert index.longest("other", array("q", [9])) == (99, 1)
    index.remove("", array("q", [1, 2, 3]), 4)
    assert index.longest("", array("q", [1, 2, 3])) == (0, 3)


def test_a_group_takes_memory_for_its_beginning_once() -> None:
    cache = cache_of(shares=True, tokens=100_000, slots=64)
    first = cache.take(None, 0, total=400, session="0", open_sessions=set())
    assert first is not None
    compute(cache, first, list(range(300)))
    for number in range(1, 40):
        slot = cache.take(first, 300, total=400, session=str(number), open_sessions=set())
        assert slot is not None
        assert (slot.prefix, slot.shared) == (first, 300)
        assert not cache.keys[0][slot.index].any()


def test_a_slot_that_itself_shares_little_becomes_one_that_others_read() -> None:
    cache = cache_of(shares=True, tokens=100_000, slots=64)

    def taken(source: Slot | None, shared: int, tokens: list[int]) -> Slot:
        slot = cache.take(source, shared, total=400, session="", open_sessions=set())
        assert slot is not None
        compute(cache, slot, tokens[shared:])
        return slot

    root = taken(None, 0, list(range(300)))
    other = taken(root, 70, [*range(70), *range(1000, 1200)])
    third = taken(other, 270, [*range(70), *range(1000, 1200), 5])
    assert (other.prefix, third.prefix, third.shared) == (None, other, 270)
    assert held(cache, third, 10) == held(cache, root, 10)


@pytest.mark.parametrize("new", [1, 5, 80])
def test_ways_of_torch_read_shared_beginnings(new: int) -> None:
    keys, values, q, segments = beginnings_shared(new, torch.float32)

    def attended() -> list[torch.Tensor]:
        together = Group(segments, keys).attend(keys, values, q, Rule(0.25))
        alone = [
            Alone([one], keys).attend(keys, values, part, Rule(0.25))
            for one, part in zip(segments, q.split(new), strict=True)
        ]
        return [together, torch.cat(alone)]

    ours = attended()
    for segment in segments:
        for buffer in (keys, values):
            buffer[segment.slot, :, : segment.shared] = buffer[3, :, : segment.shared]
    segments = [segment._replace(shared=0) for segment in segments]
    for one, other in zip(ours, attended(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("new", [5, 80])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_ways_attend_to_pieces_of_prompts_as_torch_does(new: int, dtype: torch.dtype) -> None:
    keys, values, q, segments = beginnings_shared(new, dtype)
    exact = Group(segments, keys.double()).attend(keys.double(), values.double(), q.double(), Rule(0.25))
    for kind, served in ((Tokens, can_attend(keys, values)), (Pieces, kernels_for(keys, keys, values))):
        if not served:
            pytest.skip("this CPU lacks AVX512-BF16, or there is no gcc")
        ours = kind(segments, keys).attend(keys, values, q, Rule(0.25)).double()
        assert (ours - exact).norm() < (1e-6 if dtype == torch.float32 else 5e-3) * exact.norm()


@pytest.mark.parametrize(
    ("rows", "new", "kind"), [(200, 1, Tokens), (200, 4, Tokens), (64, 24, Pieces), (1, 300, Pieces), (1, 24, Tokens)]
)
def test_keys_are_laid_out_for_pieces_that_read_them_often(rows: int, new: int, kind: type[Way]) -> None:
    keys = torch.zeros(1, 2, 8, 32)
    if kernels_for(keys, keys, keys) is None:
        pytest.skip("there is no gcc")
    segments = [Segment(new * n, new * (n + 1), n + 1, 300, 0, 290) for n in range(rows)]
    segments = [one._replace(past=0, shared=0) for one in segments] if new == 300 else segments
    assert way_of(segments, keys, keys, Rule(0.25)) is kind
    assert way_of(segments, keys, keys, Rule(0.25, window=9)) is Tokens


def beginnings_shared(new: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, list[Segment]]:
    """Keys, values, and queries as a slice of more, of three sequences that share 30, 31 and 32 tokens of slot 3."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 4, 2, 192, 32).to(dtype)
    segments = [Segment(new * n, new * (n + 1), n, 40 - 4 * n, 3, 30 + n) for n in range(3)]
    return keys, values, torch.randn(3 * new, 6, 32).to(dtype)[:, :4], segments
