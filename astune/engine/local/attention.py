"""Attention of several sequences over their slots; one class for each implementation that is fastest for some of them.

Keys and values are in the slots already. Every class has `attend(keys, values, q, rule)`: keys and values [slots,
kv heads, capacity, dim] of one layer, and the queries [tokens, heads, dim] of its segments in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from astune.engine.local.kernels import can_attend, kernels, room_for_scores
from astune.engine.local.tree_attention import Range, Tiles, kernels_for
from astune.schema import EngineError

_COPY_COST = 2
"""Reading, writing and reading again: what attending to a copy costs, against attending in place."""
_SCORES = 1 << 20
"""Scores of one head that a group may write out."""
_NO_WINDOW = 1 << 60
_READERS = 100
"""New tokens to a key from which on keys are worth being laid out for them. Fewer attend as fast each for itself."""
_PIECE = 8
"""Tokens of a piece that are worth being taken together: of fewer, rows of a tile are mostly filled up with zeros."""


class Segment(NamedTuple):
    """Tokens [start, end) of the pack continue `slot`, which holds `past` tokens, `shared` of them in `prefix`."""

    start: int
    end: int
    slot: int
    past: int
    prefix: int = 0
    shared: int = 0

    @property
    def new(self) -> int:
        return self.end - self.start

    @property
    def length(self) -> int:
        return self.past + self.new


class Rule(NamedTuple):
    """Attention parameters of a layer: scale of the scores, sliding window, soft cap."""

    scale: float
    window: int | None = None
    softcap: float | None = None


class Way(Protocol):
    """Attention plan of segments, for all layers with the same kind of keys."""

    def __init__(self, segments: Sequence[Segment], keys: Tensor) -> None: ...

    def attend(self, keys: Tensor, values: Tensor, q_NHD: Tensor, rule: Rule) -> Tensor:
        """[tokens, heads, value dim]"""
        ...


class Tokens:
    """Each token for itself, on a CPU: our own kernel reads every slot as far as it is seen, and copies nothing.

    A token's numbers depend on how many it sees, and on nothing else of the segments.
    """

    def __init__(self, segments: Sequence[Segment], keys: Tensor) -> None:
        self._attend = kernels(keys.dtype).attend
        tokens = [
            (one.slot, length, one.prefix, one.shared)
            for one in segments
            for length in range(one.past + 1, one.length + 1)
        ]
        slots, lengths, prefixes, shared = torch.tensor(tokens).T.contiguous()
        self.places = slots, lengths, prefixes, shared
        """[tokens] each."""
        self.scores = room_for_scores(max(segment.length for segment in segments))

    def attend(self, keys: Tensor, values: Tensor, q_NHD: Tensor, rule: Rule) -> Tensor:
        window = _NO_WINDOW if rule.window is None else rule.window
        return self._attend(
            q_NHD, keys, values, self.places, scale=rule.scale, window=window, softcap=rule.softcap, scores=self.scores
        )


class Pieces:
    """Pieces of prompts, on a CPU: tree attention's kernels, which take a beginning that several share once.

    Its layout has what is stored already, beginnings of others first, and then the new tokens.
    """

    def __init__(self, segments: Sequence[Segment], keys: Tensor) -> None:
        self._segments = segments
        self._capacity = keys.shape[2]
        self._layouts: dict[tuple[int, int], tuple[Tensor, Tiles]] = {}
        """Rows of a buffer and tiles, by the number of key heads and of heads that share one."""

    def attend(self, keys: Tensor, values: Tensor, q_NHD: Tensor, rule: Rule) -> Tensor:
        heads, dim = q_NHD.shape[1:]
        kv_heads = keys.shape[1]
        shape = kv_heads, heads // kv_heads
        if shape not in self._layouts:
            self._layouts[shape] = self._layout(*shape)
        rows, tiles = self._layouts[shape]
        k, v = (buffer.view(-1, dim).index_select(0, rows).view(-1, kv_heads, dim) for buffer in (keys, values))
        compiled = kernels_for(q_NHD, keys, values)
        if compiled is None:
            raise EngineError("there is no compiled attention for these keys", hint="every other way serves them")
        query = q_NHD.contiguous().view(-1, *shape, dim)
        return compiled.attend(query, k, v, tiles, rule.scale)[0].flatten(1, 2)

    def _layout(self, kv_heads: int, group: int) -> tuple[Tensor, Tiles]:
        tokens: list[Tensor] = []
        end = 0

        def placed(slot: int, positions: Range) -> Range:
            nonlocal end
            start, end = end, end + positions[1] - positions[0]
            tokens.append(torch.arange(*positions) + slot * kv_heads * self._capacity)
            return start, end

        first = {slot: placed(slot, (0, length))[0] for slot, length in _beginnings(self._segments).items()}
        seen = [
            [(first[one.prefix], first[one.prefix] + one.shared), placed(one.slot, (one.shared, one.past))]
            for one in self._segments
        ]
        own = [placed(one.slot, (one.past, one.length)) for one in self._segments]
        rows = torch.cat(tokens)[:, None] + torch.arange(kv_heads) * self._capacity
        return rows.flatten(), Tiles.of(own, [[*before, new] for before, new in zip(seen, own, strict=True)], group)


class Alone:
    """A segment through the fused kernel of torch: a long piece of a prompt, or a single next token."""

    def __init__(self, segments: Sequence[Segment], keys: Tensor) -> None:
        (self._segment,) = segments

    def attend(self, keys: Tensor, values: Tensor, q_NHD: Tensor, rule: Rule) -> Tensor:
        segment = self._segment
        first = max(0, segment.length - rule.window) if segment.new == 1 and rule.window is not None else 0
        k, v = (_held(buffer, segment)[None, :, first:] for buffer in (keys, values))
        if segment.new == 1:  # sees all of them; the heads that share keys are its queries
            q = q_NHD.reshape(1, k.shape[1], -1, k.shape[-1])
            return F.scaled_dot_product_attention(q, k, v, scale=rule.scale).reshape(1, -1, v.shape[-1])
        q = q_NHD.transpose(0, 1)[None]
        grouped = q.shape[1] != k.shape[1]
        if segment.past == 0 and (rule.window is None or rule.window >= segment.length):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=rule.scale, enable_gqa=grouped)
            return out[0].transpose(0, 1)
        at_T = torch.arange(segment.length, device=q.device)
        behind = at_T[segment.past :, None] - at_T
        seen = behind >= 0 if rule.window is None else (behind >= 0) & (behind < rule.window)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=rule.scale, enable_gqa=grouped)
        return out[0].transpose(0, 1)


def _held(buffer: Tensor, segment: Segment) -> Tensor:
    """Keys or values [kv heads, length, dim] of a segment and what is before it."""
    own = buffer[segment.slot, :, segment.shared : segment.length]
    return torch.cat([buffer[segment.prefix, :, : segment.shared], own], dim=1) if segment.shared else own


class Group:
    """Two batched matrix products, new tokens padded to one number; faster than a fused kernel for a few queries.

    Each segment has a place among `places`; its tokens stand at places [place, 0..n) of the padded queries. Over a
    range of whole slots the places are the slots themselves, which costs no copy but computes those in between too.
    """

    def __init__(self, segments: Sequence[Segment], keys: Tensor) -> None:
        capacity, device = keys.shape[2], keys.device
        self._n = max(segment.new for segment in segments)
        longest = max(segment.length for segment in segments)
        slots = [segment.slot for segment in segments]
        low, high = min(slots), max(slots) + 1
        # A copy of one slot has its own length; the slot itself has one that other sequences decide.
        shares = any(segment.shared for segment in segments)
        self._copied = len(slots) == 1 or shares or (high - low) * capacity > _COPY_COST * len(slots) * longest
        self._length = longest if self._copied else capacity
        self._range = slice(low, high)
        self._slots = torch.tensor(slots, device=device)
        self._slot_of_token = self._slots_of_tokens(segments) if shares else None
        places = range(len(slots)) if self._copied else [slot - low for slot in slots]
        self._places = len(slots) if self._copied else high - low
        last = [[0] * self._n for _ in range(self._places)]  # padding sees its slot's first token, and is not read
        at: list[int] = []
        for place, segment in zip(places, segments, strict=True):
            count = segment.new
            last[place][:count] = range(segment.past, segment.length)
            at.extend(range(place * self._n, place * self._n + count))
        self._padded = at != list(range(self._places * self._n))
        self._at = torch.tensor(at, device=device)
        self._last = torch.tensor(last, device=device)
        self._masks: dict[tuple[torch.dtype, int | None], Tensor] = {}
        self._rows: dict[int, Tensor] = {}
        """Rows of a buffer that a copy consists of, by the number of key heads."""

    def _slots_of_tokens(self, segments: Sequence[Segment]) -> Tensor:
        """[places, length]: which slot holds each token of a place."""
        prefixes, shared = (torch.tensor([s[field] for s in segments], device=self._slots.device) for field in (4, 5))
        at_T = torch.arange(self._length, device=self._slots.device)
        return torch.where(at_T < shared[:, None], prefixes[:, None], self._slots[:, None])

    def _copy_of(self, buffer: Tensor) -> Tensor:
        """[places, kv heads, length, dim]"""
        if self._slot_of_token is None:
            return buffer[self._slots, :, : self._length]
        _, kv_heads, capacity, dim = buffer.shape
        if kv_heads not in self._rows:
            heads = torch.arange(kv_heads, device=buffer.device)[:, None]
            first = (self._slot_of_token[:, None] * kv_heads + heads) * capacity
            self._rows[kv_heads] = (first + torch.arange(self._length, device=buffer.device)).flatten()
        copy = buffer.view(-1, dim).index_select(0, self._rows[kv_heads])
        return copy.view(self._places, kv_heads, self._length, dim)

    def _mask(self, dtype: torch.dtype, window: int | None) -> Tensor:
        """0 where a query may look and -inf elsewhere, [places, 1, n, 1, length]."""
        key = (dtype, window)
        if key not in self._masks:
            at_T = torch.arange(self._length, device=self._last.device)
            hidden = at_T > self._last[..., None]
            if window is not None:
                hidden |= at_T <= self._last[..., None] - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
            self._masks[key] = mask[:, None, :, None]
        return self._masks[key]

    def attend(self, keys: Tensor, values: Tensor, q_NHD: Tensor, rule: Rule) -> Tensor:
        _, heads, dim = q_NHD.shape
        kv_heads = keys.shape[1]
        if self._copied:
            keys, values = self._copy_of(keys), self._copy_of(values)
        else:
            keys, values = keys[self._range], values[self._range]
        if self._padded:
            q_NHD = q_NHD.new_zeros((self._places * self._n, heads, dim)).index_copy_(0, self._at, q_NHD)
        shape = (self._places, kv_heads, self._n, heads // kv_heads)
        q_ZQD = (
            q_NHD.view(self._places, self._n, kv_heads, -1, dim).transpose(1, 2).reshape(-1, shape[2] * shape[3], dim)
        )
        weights = torch.softmax(self._scores(q_ZQD, keys.flatten(0, 1), shape, rule), dim=-1)
        out = torch.bmm(weights, values.flatten(0, 1)).view(*shape, -1)
        out = out.transpose(1, 2).reshape(self._places * self._n, heads, -1)
        return out[self._at] if self._padded else out

    def _scores(self, q_ZQD: Tensor, k_ZTD: Tensor, shape: tuple[int, int, int, int], rule: Rule) -> Tensor:
        """Masked scores [places * kv heads, n * heads of a kv head, length]."""
        mask = self._mask(q_ZQD.dtype, rule.window)
        k_ZDT = k_ZTD.transpose(1, 2)
        if rule.softcap is None and self._n == 1:
            flat = mask.expand(-1, shape[1], -1, -1, -1).reshape(len(k_ZTD), 1, -1)
            return torch.baddbmm(flat, q_ZQD, k_ZDT, alpha=rule.scale)
        scores = torch.baddbmm(q_ZQD.new_zeros(1, 1, 1), q_ZQD, k_ZDT, beta=0, alpha=rule.scale)
        if rule.softcap is not None:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        return scores.view(*shape, -1).add_(mask).view(scores.shape)


class Apart:
    """Every segment for itself: its numbers depend on no other one."""

    def __init__(self, segments: Sequence[Segment], keys: Tensor) -> None:
        self._segments = segments
        self._ways: dict[bool, list[Way]] = {}
        """Compiled functions, with and without a cap of the scores."""

    def attend(self, keys: Tensor, values: Tensor, q_NHD: Tensor, rule: Rule) -> Tensor:
        capped = rule.softcap is not None
        if capped not in self._ways:
            kind = Group if capped else Alone
            self._ways[capped] = [kind([segment], keys) for segment in self._segments]
        queries = q_NHD.split([segment.new for segment in self._segments])
        return torch.cat(
            [way.attend(keys, values, q, rule) for way, q in zip(self._ways[capped], queries, strict=True)]
        )


def way_of_each(segments: Sequence[Segment], keys: Tensor, values: Tensor, _: Rule) -> type[Way]:
    """The fastest way that computes each segment as if it were alone; all have one new token, or none has."""
    return Tokens if _takes_tokens(keys, values) else Apart


def _takes_tokens(keys: Tensor, values: Tensor) -> bool:
    return keys.device.type == "cpu" and can_attend(keys, values)


def way_of(segments: Sequence[Segment], keys: Tensor, values: Tensor, rule: Rule) -> type[Way]:
    """The fastest way for a part of `parts_of`, in a layer of these keys and values."""
    is_plain = rule.window is None and rule.softcap is None
    is_worth_it = segments[0].new >= _PIECE and _readers(segments) >= _READERS
    if is_plain and is_worth_it and kernels_for(keys, keys, values):
        return Pieces
    if _takes_tokens(keys, values):
        return Tokens
    if rule.softcap is not None:
        return Group
    alone = len(segments) == 1 and (segments[0].new == 1 or _scores(segments) > _SCORES)
    return Alone if alone else Group


def _beginnings(segments: Sequence[Segment]) -> dict[int, int]:
    """Tokens that are read in each slot with which others begin."""
    shared: dict[int, int] = {}
    for one in segments:
        shared[one.prefix] = max(one.shared, shared.get(one.prefix, 0))
    return shared


def _readers(segments: Sequence[Segment]) -> float:
    """New tokens that see a key, in the mean over keys."""
    keys = sum(one.length - one.shared for one in segments) + sum(_beginnings(segments).values())
    return sum(one.new * (one.past + one.length) / 2 for one in segments) / keys


def parts_of(alike: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    """Segments of similar size in parts that may attend together."""
    together = max(1, _SCORES * len(alike) // _scores(alike))
    for first in range(0, len(alike), together):
        yield alike[first : first + together]


def _scores(segments: Sequence[Segment]) -> int:
    """The number of one head's scores, padded."""
    return len(segments) * max(segment.new for segment in segments) * max(segment.length for segment in segments)
