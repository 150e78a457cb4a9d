"""Variations of example tasks, along named axes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from astune.data_generator.draft import Draft
from astune.helper_model import Form, HelperModel, data

COMPOSITION = "composition"
_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Example:
    """A task of the user's with its reference answer."""

    task_id: str
    question: str
    answer: str
    env_type: str = "no_env"


class _Varied(Form):
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Vary:
    """Asks for one variation; `number` counts the variations of a kind."""

    example: Example
    other: Example | None
    axis: str
    number: int


@dataclass
class VariationSource:
    """Drafts that vary the examples.

    Args:
        axes: names of prompts `vary_NAME`; one of them, `composition`, takes two examples.
        held_out: ids of examples that are held out; those and the others are never composed with each other.
    """

    model: HelperModel
    examples: Sequence[Example]
    axes: Sequence[str]
    seed: int
    held_out: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._instructions = {axis: self.model.prompts.get(f"vary_{axis}") for axis in self.axes}

    def asks(self) -> Iterator[Vary]:
        """Yield the requests: every example along every axis, repeatedly, in an order drawn from the seed."""
        for number in range(_ROUNDS):
            draw = random.Random(f"{self.seed}/{number}")
            pairs = [(example, axis) for example in self.examples for axis in self.axes]
            draw.shuffle(pairs)
            for example, axis in pairs:
                others = self._beside(example) if axis == COMPOSITION else []
                if axis != COMPOSITION or others:
                    yield Vary(example, draw.choice(others) if others else None, axis, number)

    async def drafts(self, ask: Vary) -> list[Draft]:
        """Proposal of the helper model."""
        shown = [{"question": each.question, "answer": each.answer} for each in (ask.example, ask.other) if each]
        varied = await self.model.ask_json(
            self._instructions[ask.axis], data(examples=shown), _Varied, number=ask.number
        )
        made_of = {"example": ask.example.task_id, "axis": ask.axis}
        if ask.other is not None:
            made_of["other_example"] = ask.other.task_id
        return [
            Draft(
                varied.question,
                varied.answer,
                group=ask.example.task_id,
                made_of=made_of,
                env_type=ask.example.env_type,
            )
        ]

    def _beside(self, example: Example) -> list[Example]:
        side = example.task_id in self.held_out
        return [each for each in self.examples if each is not example and (each.task_id in self.held_out) == side]
