"""What `make bench-engine` has every engine do: requests at once, and episodes of two turns."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine_sides import Side

SHARED_TOKENS = 300
NEW_TOKENS = 64
TURN_TOKENS = 40
SYSTEM = (
    "You are a careful assistant that solves word problems one step at a time. You may ask a calculator by writing "
    "an expression between two tags, and you read its result in the next message before you go on. Say what is asked, "
    "name the quantities, and write the final answer in a box at the very end. "
)
QUESTION = "{name} has {a} {thing} and buys {b} more, then gives {c} of them to a friend. How many {thing} are left?"
OBSERVATION = "\nThe calculator says {value}. What is the final answer?\n"
NAMES = ("Mia", "Omar", "Lena", "Kofi", "Yuki", "Ravi", "Ines", "Tom")
THINGS = ("apples", "stamps", "marbles", "books", "coins", "shells", "cards", "pencils")


@dataclass(frozen=True)
class Scenario:
    name: str
    concurrent: int
    turns: int
    bar: float | None
    """The ratio to the best peer that has to be reached."""

    @property
    def new_tokens(self) -> int:
        return self.concurrent * (NEW_TOKENS if self.turns == 1 else self.turns * TURN_TOKENS)


SCENARIOS = (
    Scenario("1 request", 1, 1, 1.0),
    Scenario("8 requests", 8, 1, 1.3),
    Scenario("32 requests", 32, 1, None),
    Scenario("64 requests", 64, 1, 1.3),
    Scenario("8 episodes of two turns", 8, 2, None),
    Scenario("64 episodes of two turns", 64, 2, None),
)


class Prompts:
    """Token ids of prompts; `repetition` and `index` give a question that no other pair has."""

    def __init__(self, folder: Path) -> None:
        from transformers.models.auto.tokenization_auto import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._shared: list[int] = self._tokenizer.encode(SYSTEM * 8)[:SHARED_TOKENS]

    def first(self, repetition: int, index: int) -> list[int]:
        number = repetition * 64 + index
        text = QUESTION.format(
            name=NAMES[index % 8], a=number + 10, b=number % 37 + 11, c=number % 23 + 2, thing=THINGS[number % 7]
        )
        return self._shared + self._tokenizer.encode(f"{text}\n")

    def observation(self, index: int) -> list[int]:
        return self._tokenizer.encode(OBSERVATION.format(value=index + 17))


async def tokens_per_s(side: Side, scenario: Scenario, repetition: int, prompts: Prompts) -> float:
    """New tokens per second of one repetition."""

    async def episode(index: int) -> int:
        session = f"{scenario.name}-{repetition}-{index:03d}"
        prompt = prompts.first(repetition, index)
        new_tokens = NEW_TOKENS if scenario.turns == 1 else TURN_TOKENS
        drawn = 0
        for _ in range(scenario.turns):
            answer = await side.generate(prompt, new_tokens, session)
            if len(answer.logprobs) != len(answer.token_ids):
                raise SystemExit(f"{side.name}: {len(answer.logprobs)} log-probabilities of {len(answer.token_ids)}")
            drawn += len(answer.token_ids)
            prompt = prompt + answer.token_ids + prompts.observation(index)
        side.end(session)
        return drawn

    started = time.perf_counter()
    drawn = sum(await asyncio.gather(*(episode(index) for index in range(scenario.concurrent))))
    seconds = time.perf_counter() - started
    if drawn != scenario.new_tokens:
        raise SystemExit(f"{side.name}, {scenario.name}: {drawn} tokens were drawn, not {scenario.new_tokens}")
    return drawn / seconds


async def decode_ms(side: Side, repetition: int, prompts: Prompts) -> float:
    """Milliseconds a token of one sequence: what 64 more tokens than one cost, with the prompt cached."""
    prompt = prompts.first(repetition, 0)
    seconds: list[float] = []
    for new_tokens in (1, 1, 1 + NEW_TOKENS):
        started = time.perf_counter()
        await side.generate(prompt, new_tokens, f"decode-{repetition}")
        seconds.append(time.perf_counter() - started)
    side.end(f"decode-{repetition}")
    return (seconds[2] - seconds[1]) / NEW_TOKENS * 1e3
