"""Masks of allowed tokens: the right ones, and reasons where there are none."""

from __future__ import annotations

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astune.engine.local.grammar import Grammars, forbid_others, unpack
from astune.schema import Constraint, EngineError, Grammar, GrammarError, GrammarKind, install_extra

pytestmark = pytest.mark.slow

STOPS = (2, 0)
VOCABULARY = 49152


@pytest.fixture(scope="session")
def grammars(smol_folder: Path) -> Grammars:
    return Grammars(smol_folder, VOCABULARY)


@pytest.fixture(scope="session")
def texts(tokenizer: Any) -> list[str]:
    """What each ordinary token writes; empty for control tokens, which write nothing."""
    special = set(tokenizer.all_special_ids)
    return ["" if token in special else tokenizer.decode([token]) for token in range(VOCABULARY)]


def constraint(kind: GrammarKind, text: str, stops: tuple[int, ...] = STOPS) -> Constraint:
    return Constraint(Grammar(kind, text), stops)


def test_a_mask_holds_every_token_that_a_text_of_the_language_can_go_on_with_and_no_other(
    grammars: Grammars, texts: list[str]
) -> None:
    """Against the whole language, written out. Where only one text can follow, only its first usual token may."""
    numbers = ["".join(digits) for length in (1, 2, 3) for digits in product("0123456789", repeat=length)]
    language = {f"{sign}{number}{unit}" for sign, number, unit in product(("", "-"), numbers, ("", " kg", " metres"))}
    beginnings = {text[:end] for text in language for end in range(len(text) + 1)}
    n_forced = n_free = 0
    for whole in ("-12 kg", "407", "9 metres", "-1 metres"):
        matcher = grammars.matcher(constraint("regex", "-?[0-9]{1,3}( kg| metres)?"))
        written = ""
        while True:
            found = set(np.flatnonzero(unpack(matcher.allowed(), VOCABULARY)).tolist())
            expected = {token for token, text in enumerate(texts) if text and written + text in beginnings}
            expected |= set(STOPS) if written in language else set()
            following = {text[len(written) :][:1] for text in language if text.startswith(written)}
            if found == expected:
                n_free += 1
            else:
                assert len(following) == len(found) == 1
                assert found < expected
                n_forced += 1
            if written == whole:
                assert set(STOPS) <= found
                break
            token = min(
                (t for t in found if whole[len(written) :].startswith(texts[t] or "-")), key=lambda t: len(texts[t])
            )
            matcher.accept(token)
            written += texts[token]
    assert n_forced > 2
    assert n_free > 10


def test_control_tokens_are_allowed_only_where_the_text_may_end_or_the_grammar_names_them(
    grammars: Grammars, tokenizer: Any
) -> None:
    special = tokenizer.all_special_ids
    anything = unpack(grammars.matcher(constraint("regex", "(?s:.*)")).allowed(), VOCABULARY)
    assert {token for token in special if anything[token]} == set(STOPS)
    assert anything.sum() > 0.99 * VOCABULARY
    matcher = grammars.matcher(constraint("lark", "start: <|im_start|> /[0-9]/"))
    assert np.flatnonzero(unpack(matcher.allowed(), VOCABULARY)).tolist() == [1]


def test_rows_of_the_head_that_no_token_belongs_to_are_never_allowed(smol_folder: Path) -> None:
    padded = Grammars(smol_folder, VOCABULARY + 77)
    mask_V = unpack(padded.matcher(constraint("regex", "(?s:.*)")).allowed(), VOCABULARY + 77)
    assert mask_V.shape == (VOCABULARY + 77,)
    assert not mask_V[VOCABULARY:].any()


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('{"n": 3, "tags": ["a", "b"]}', True),
        ('{"n":3,"tags":["a","b"]}', True),
        ('{"n": 3,  "tags": ["a"]}', False),
        ('{\n  "n": 3, "tags": ["a"]}', False),
    ],
)
def test_json_stands_on_one_line(grammars: Grammars, texts: list[str], text: str, allowed: bool) -> None:
    """Whether the text can be written with tokens that are allowed in their places."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
        "required": ["n", "tags"],
        "additionalProperties": False,
    }
    matcher = grammars.matcher(constraint("json_schema", json.dumps(schema)))
    written = ""
    while written != text:
        found = np.flatnonzero(unpack(matcher.allowed(), VOCABULARY)).tolist()
        fitting = [token for token in found if texts[token] and text[len(written) :].startswith(texts[token])]
        if not fitting:
            break
        matcher.accept(fitting[0])
        written += texts[fitting[0]]
    assert (written == text) is allowed
    if allowed:
        assert unpack(matcher.allowed(), VOCABULARY)[list(STOPS)].all()


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("regex", "(a", "unclosed group"),
        ("regex", "a(?=b)", "look-around"),
        ("json_schema", '{"type": "nonsense"}', "Invalid type: nonsense"),
        ("json_schema", "{nope", "does not compile"),
        ("json_schema", '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}', "does not compile"),
        ("lark", "start: <nonexistent>", "unknown special token"),
    ],
)
def test_a_grammar_that_does_not_compile_is_an_error_with_the_librarys_reason(
    grammars: Grammars, kind: GrammarKind, text: str, reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason) as refused:
        grammars.matcher(constraint(kind, text))
    assert f"the {kind} grammar" in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_without_a_mask_and_allowed_tokens_keep_their_logits_and_others_lose_all_probability(
    dtype: torch.dtype,
) -> None:
    logits = torch.randn(5, 1003, generator=torch.Generator().manual_seed(0)).to(dtype) * 10
    before = logits.clone()
    bits = np.random.default_rng(0).integers(0, 256, 126, dtype=np.uint8)
    forbid_others(logits, {1: bits, 3: ~bits})
    assert torch.equal(logits[[0, 2, 4]], before[[0, 2, 4]])
    allowed = torch.from_numpy(unpack(bits, 1003)).bool()
    for row, mask in ((1, allowed), (3, ~allowed)):
        assert torch.equal(logits[row][mask], before[row][mask])
        expected = before[row].float().masked_fill(~mask, -torch.inf).log_softmax(0)
        found = logits[row].float().log_softmax(0)
        assert torch.equal(found[mask], expected[mask])
        assert (found.exp()[~mask] == 0).all()
    forbid_others(logits, {})


def test_a_grammar_without_stop_tokens_is_refused_since_it_could_never_end(grammars: Grammars) -> None:
    with pytest.raises(EngineError, match="needs stop tokens"):
        grammars.matcher(constraint("regex", "a", ()))


def test_a_token_that_was_not_allowed_stops_the_matcher_with_a_reason(grammars: Grammars, texts: list[str]) -> None:
    matcher = grammars.matcher(constraint("regex", "yes"))
    matcher.accept(texts.index("q"))
    with pytest.raises(EngineError, match=r"cannot continue: .*doesn't satisfy the grammar"):
        matcher.allowed()


def test_tokens_that_are_no_completion_of_the_grammar_are_refused(grammars: Grammars, texts: list[str]) -> None:
    limits = constraint("regex", "[ab]{3}c")
    assert len(grammars.masks(limits, [*map(texts.index, "abb")])) == 3
    with pytest.raises(EngineError, match="token 2 of a completion is none"):
        grammars.masks(limits, [*map(texts.index, "abc")])


@pytest.mark.slow
def test_a_grammar_whose_states_run_out_is_compiled_anew(grammars: Grammars, texts: list[str]) -> None:
    """The expression has 2^18 states, more than llguidance keeps, and all matchers of a grammar share them."""
    limits = constraint("regex", "(a|b)*a(a|b){17}")
    rng = random.Random(0)
    letters = [texts.index("a"), texts.index("b")]

    def follow(completions: int) -> None:
        for _ in range(completions):
            matcher = grammars.matcher(limits)
            for _ in range(400):
                matcher.accept(rng.choice(letters))
            matcher.allowed()

    with pytest.raises(EngineError, match="too many states"):
        follow(5000)
    follow(20)


@pytest.mark.parametrize("where", ["before", "within"])
def test_a_completion_has_its_masks_where_the_states_of_its_grammar_are_used_up(
    smol_folder: Path, texts: list[str], where: str
) -> None:
    """By completions whose masks were computed, or by others; nearly every letter makes a state."""
    grammars = Grammars(smol_folder, VOCABULARY)
    limits = constraint("regex", "(a|b)*a(a|b){30}")
    rng = random.Random(0)
    completions = [rng.choices([texts.index("a"), texts.index("b")], k=400) for _ in range(120)]
    expected = [mask.tobytes() for mask in grammars.masks(limits, completions[0])]
    shares_their_states = grammars.matcher(limits)
    for completion in completions:
        if where == "within":
            assert len(grammars.masks(limits, completion)) == 400
        else:
            matcher = grammars.matcher(limits)
            for token in completion:
                matcher.accept(token)
    assert [mask.tobytes() for mask in grammars.masks(limits, completions[0])] == expected
    shares_their_states.accept(completions[0][0])
    with pytest.raises(EngineError, match="too many"):
        shares_their_states.allowed()


def test_matchers_of_one_grammar_do_not_know_of_each_other(grammars: Grammars, texts: list[str]) -> None:
    limits = constraint("regex", "[ab]{3}c")
    ids = [*map(texts.index, "aba"), texts.index("c"), 2]
    expected = [mask.tobytes() for mask in grammars.masks(limits, ids)]

    def follow(_: int) -> list[bytes]:
        return [mask.tobytes() for mask in grammars.masks(limits, ids)]

    with ThreadPoolExecutor(8) as pool:
        assert all(masks == expected for masks in pool.map(follow, range(64)))


def test_without_llguidance_the_error_says_what_to_install(smol_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(EngineError, match="llguidance") as refused:
        Grammars(smol_folder, VOCABULARY).matcher(constraint("regex", "a"))
    assert refused.value.hint == install_extra("local")
