"""Sampling within grammars: answers that belong to them, and the exact probabilities that they were drawn with."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from engine_helpers import assert_exact, load, transformers_model
from pydantic import BaseModel, Field

from astune.engine import InProcessEngine
from astune.engine.local.grammar import Grammars, Matcher, unpack
from astune.schema import Completion, Constraint, EngineError, Grammar, GrammarError, SamplingParams
from astune.workflow.response_format import grammar_of

pytestmark = pytest.mark.slow

STOPS = (2, 0)
PROMPTS = [list(range(100 + 7 * i, 140 + 9 * i)) for i in range(6)]


class Item(BaseModel):
    name: str = Field(max_length=12, pattern="^[a-z ]*$")
    count: int = Field(ge=0, le=999)


class Order(BaseModel):
    items: list[Item] = Field(max_length=2)
    paid: bool
    way: Literal["post", "pick-up"]
    note: str | None = Field(default=None, max_length=10)


def grammar(model: type[BaseModel]) -> Grammar:
    found = grammar_of(model)
    assert found is not None
    return found


ORDER = grammar(Order)
DATE = Grammar("regex", r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]")


@pytest.fixture(scope="session")
def decode(tokenizer: Any) -> Callable[[Completion], str]:
    return lambda completion: tokenizer.decode(completion.token_ids, skip_special_tokens=True)


def params(grammar: Grammar | None, seed: int, *, max_tokens: int = 300, temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(max_tokens, temperature=temperature, stop_token_ids=STOPS, seed=seed, grammar=grammar)


def assert_exact_within(
    model: Any, grammars: Grammars, prompt: list[int], completion: Completion, asked: SamplingParams
) -> None:
    """The recorded log-probabilities are those of transformers' forward pass, renormalised over the allowed tokens."""
    assert asked.constraint is not None
    masks = grammars.masks(asked.constraint, completion.token_ids)
    ids = torch.tensor([prompt + completion.token_ids])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / (asked.temperature or 1.0)
    allowed = torch.from_numpy(np.stack([unpack(mask, logits.shape[1]) for mask in masks]))
    expected = logits.masked_fill(allowed == 0, -torch.inf).log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
async def test_every_answer_belongs_to_its_grammar_and_has_the_probabilities_it_was_sampled_with(
    tiny_folder: Path, decode: Callable[[Completion], str], temperature: float
) -> None:
    engine, model = load(tiny_folder, max_model_len=1024), transformers_model(tiny_folder)
    grammars = Grammars(tiny_folder, model.config.vocab_size)
    asked = [params((ORDER, DATE)[i % 2], i, temperature=temperature) for i in range(12)]
    completions = await asyncio.gather(
        *(engine.generate(PROMPTS[i % 6], one, session=f"{i}") for i, one in enumerate(asked))
    )
    for i, (one, completion) in enumerate(zip(asked, completions, strict=True)):
        assert completion.finish_reason == "stop"
        assert completion.token_ids[-1] in STOPS
        text = decode(completion)
        if one.grammar is ORDER:
            assert Order.model_validate_json(text).model_dump_json(exclude_unset=True)
        else:
            assert re.fullmatch(DATE.text, text)
        assert_exact_within(model, grammars, PROMPTS[i % 6], completion, one)
    await engine.aclose()


async def test_a_forced_token_has_probability_one(tiny: InProcessEngine) -> None:
    completion = await tiny.generate(PROMPTS[0], params(Grammar("regex", "x"), 1), session="a")
    assert completion.logprobs[0] == 0.0
    assert len(completion.token_ids) == 2


async def test_others_in_the_batch_stay_exactly_as_they_were(tiny_folder: Path) -> None:
    tiny = load(tiny_folder, deterministic=True)
    model = transformers_model(tiny_folder)
    free = [params(None, i, max_tokens=40) for i in range(5)]
    alone = [await tiny.generate(PROMPTS[i], one, session=f"alone-{i}") for i, one in enumerate(free)]
    among = [
        *(tiny.generate(PROMPTS[i], one, session=f"among-{i}") for i, one in enumerate(free)),
        *(tiny.generate(PROMPTS[i % 6], params(ORDER, i), session=f"order-{i}") for i in range(8)),
    ]
    for i, completion in enumerate((await asyncio.gather(*among))[:5]):
        assert completion.token_ids == alone[i].token_ids
        assert_exact(model, PROMPTS[i], completion)
    await tiny.aclose()


async def test_a_seed_gives_the_same_answer_again(tiny_folder: Path) -> None:
    runs: list[list[Completion]] = []
    for _ in range(2):
        engine = load(tiny_folder, deterministic=True)
        sessions = [f"{i}" for i in range(6)]
        for session in sessions:
            engine.open_session(session)

        async def answer(i: int, engine: InProcessEngine = engine) -> Completion:
            completion = await engine.generate(PROMPTS[i], params(ORDER if i % 2 else None, i), session=f"{i}")
            engine.close_session(f"{i}")
            return completion

        runs.append(await asyncio.gather(*(answer(i) for i in range(6))))
        await engine.aclose()
    assert runs[0] == runs[1]


async def test_an_answer_that_reaches_max_tokens_ends_there(
    tiny: InProcessEngine, decode: Callable[[Completion], str]
) -> None:
    completion = await tiny.generate(PROMPTS[1], params(ORDER, 3, max_tokens=9), session="a")
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == 9
    with pytest.raises(json.JSONDecodeError):
        json.loads(decode(completion))


async def test_a_grammar_that_does_not_compile_fails_its_own_call_only(tiny: InProcessEngine) -> None:
    good = asyncio.create_task(tiny.generate(PROMPTS[0], params(DATE, 1), session="good"))
    with pytest.raises(GrammarError, match="unclosed group"):
        await tiny.generate(PROMPTS[1], params(Grammar("regex", "(a"), 1), session="bad")
    assert (await good).finish_reason == "stop"


async def test_a_completion_that_cannot_go_on_fails_alone_and_its_tokens_are_counted(
    tiny: InProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matcher that was told of a token which is none of its grammar's has lost the completion."""
    compiled = tiny._grammars.matcher

    def lost(constraint: Constraint) -> Matcher:
        matcher = compiled(constraint)
        if constraint.grammar is ORDER:
            matcher.accept(100)
        return matcher

    monkeypatch.setattr(tiny._grammars, "matcher", lost)
    running = asyncio.create_task(tiny.generate(PROMPTS[1], params(DATE, 1), session="kept"))
    with pytest.raises(EngineError, match="cannot continue"):
        await tiny.generate(PROMPTS[0], params(ORDER, 1), session="lost")
    kept = await running
    stats = tiny.stats()
    assert stats.cancelled_tokens == 1
    assert stats.sampled_tokens == stats.cancelled_tokens + len(kept.token_ids)
    assert stats.running == 0


async def test_compiling_a_grammar_holds_nobody_up(tiny: InProcessEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one grammar compiles, calls that need none go on."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()
    compiled = tiny._grammars.matcher

    def slow(constraint: Constraint) -> Matcher:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return compiled(constraint)

    monkeypatch.setattr(tiny._grammars, "matcher", slow)
    compiling = asyncio.create_task(tiny.generate(PROMPTS[0], params(DATE, 1), session="slow"))
    await tiny.generate(PROMPTS[1], params(None, 1, max_tokens=20), session="quick")
    assert not compiling.done()
    release.set()
    assert (await compiling).finish_reason == "stop"
