"""Word problems for the calculator, made from a seed: `python -m tutorial.example_calculator.tasks --help`.

Training and held-out problems share the kind of question and the words that tell it (in all, left): the held-out ones
have their own sentences, names, things and numbers (those that leave 3 when divided by 4; no training problem has one).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from astune import Task, TaskReaderBase, TaskReaderConfig, TaskReaderError, calculate, format_number
from tutorial.example_calculator.rules import cue_words

Split = Literal["train", "validation"]
Operation = Literal["addition", "subtraction", "both"]
SINGLE: tuple[Operation, Operation] = ("addition", "subtraction")


@dataclass(frozen=True, slots=True)
class Template:
    """`text` and `expression` over {a} > {b} > {c}; {name}, {other} are people and {things} what is counted."""

    text: str
    expression: str
    things: tuple[str, ...] = (
        "apples",
        "pens",
        "stamps",
        "coins",
        "cards",
        "shells",
        "books",
        "cups",
        "stickers",
        "eggs",
    )


@dataclass(frozen=True, slots=True)
class World:
    """Parts of a split: templates by what they ask for, and the words in them.

    Problems of one operation put two amounts together or take one away; the larger comes first in both, so that only
    the words say which it is.
    """

    addition: tuple[Template, ...]
    subtraction: tuple[Template, ...]
    both: tuple[Template, ...]
    names: tuple[str, ...]
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


GUESTS = ("tourists", "pupils", "guests")
PLANTS = ("tulips", "roses", "oaks")
ANIMALS = ("goats", "sheep", "deer")

FISH = ("trout", "eels", "perch")
MEDIA = ("films", "maps", "comics")
SHRUBS = ("lilacs", "ferns", "hollies")
BIRDS = ("gulls", "doves", "hens")
CLOTHES = ("shirts", "towels", "socks")
CAKES = ("muffins", "waffles", "pies")
RIDERS = ("soldiers", "dancers", "nurses")

TRAIN = World(
    addition=(
        Template(
            "{name} had {a} {things} and {gained} {b} more. How many {things} does {name} have in all?", "{a}+{b}"
        ),
        Template(
            "There are {a} {things} in a box and {b} in a bag. How many {things} are there altogether?", "{a}+{b}"
        ),
        Template("{name} {gained} {a} {things}. {other} {gained} {b}. How many {things} is that together?", "{a}+{b}"),
        Template("{name} {gained} {a} {things}. Later {name} {gained} {b} more. How many is that in all?", "{a}+{b}"),
        Template("{name} {lost} {a} {things} on Monday and {b} on Tuesday. How many is that in total?", "{a}+{b}"),
        Template("{name} {gained} {a} red {things} and {b} blue ones. What is the total?", "{a}+{b}"),
        Template(
            "{name} reads {a} pages in the morning and {b} in the evening. How many pages is that in all?", "{a}+{b}"
        ),
        Template("{a} people wait in a hall and {b} more come in. How many people are there altogether?", "{a}+{b}"),
        Template(
            "A team scores {a} points in one game and {b} in the next. How many points is that together?", "{a}+{b}"
        ),
        Template("{name} walks {a} steps, {other} walks {b}. How many steps do they walk altogether?", "{a}+{b}"),
        Template("A baker has {a} loaves. After lunch {b} come out of the oven. How many loaves in all?", "{a}+{b}"),
        Template("In a street stand {a} old houses and {b} new ones. How many houses in total?", "{a}+{b}"),
        Template("{name} ran {a} minutes, then {b} minutes after a rest. How many minutes altogether?", "{a}+{b}"),
        Template("A lift has {a} boxes in it. On the next floor {b} are put in. How many boxes in all?", "{a}+{b}"),
        Template("One bag weighs {a} grams, another {b}. What do they weigh together?", "{a}+{b}"),
        Template("A song lasts {a} seconds, the one after it {b}. How many seconds in total?", "{a}+{b}"),
        Template("A club had {a} members when {b} joined. How many members are there in all?", "{a}+{b}"),
        Template("{name} drew {a} stars on one page and {b} on the other. How many stars altogether?", "{a}+{b}"),
        Template(
            "A bus carries {a} {things}. At the next stop {b} get on. How many {things} in all?", "{a}+{b}", GUESTS
        ),
        Template("{name} planted {a} {things} last year and {b} this year. What is the total?", "{a}+{b}", PLANTS),
        Template(
            "One farm keeps {a} {things}, the farm beside it {b}. How many do they keep together?", "{a}+{b}", ANIMALS
        ),
    ),
    subtraction=(
        Template("{name} had {a} {things} and {lost} {b}. How many {things} are left?", "{a}-{b}"),
        Template("Of {a} {things} {name} {lost} {b}. How many {things} remain?", "{a}-{b}"),
        Template("{name} {gained} {a} {things} and {lost} {b} of them. How many {things} are still there?", "{a}-{b}"),
        Template("There are {a} {things} in a box and {b} are taken out. How many {things} remain in it?", "{a}-{b}"),
        Template("{name} carried {a} {things} and put {b} down. How many does {name} still carry?", "{a}-{b}"),
        Template("{name} needs {a} {things} and has {b}. How many are still needed?", "{a}-{b}"),
        Template("{a} people sat in a hall and {b} walked out. How many are left in the hall?", "{a}-{b}"),
        Template("A rope is {a} metres long. {name} cuts off {b} metres. How many metres remain?", "{a}-{b}"),
        Template("{name} had {a} dollars and paid {b} for a coat. How many dollars are left?", "{a}-{b}"),
        Template("A jug holds {a} cups of water. {name} pours {b} out. How many cups are left in it?", "{a}-{b}"),
        Template("On a shelf stood {a} {things}, but {b} fell down. How many remain on it?", "{a}-{b}"),
        Template("A trip takes {a} hours and {b} are over. How many hours still remain?", "{a}-{b}"),
        Template("A tank held {a} litres and lost {b}. How many litres are left?", "{a}-{b}"),
        Template("From a roll of {a} tickets {name} tears off {b}. How many tickets are still on it?", "{a}-{b}"),
        Template("A hall has {a} seats and {b} are taken. How many seats are left?", "{a}-{b}"),
        Template("A phone had {a} percent and used up {b}. How many percent are left?", "{a}-{b}"),
        Template("A candle of {a} millimetres burned down by {b}. How many millimetres remain?", "{a}-{b}"),
        Template("A book has {a} pages and {name} has read {b}. How many are still to read?", "{a}-{b}"),
        Template("Out of {a} {things}, {b} went home early. How many are still there?", "{a}-{b}", GUESTS),
        Template("{name} watched {a} {things} and {b} walked off. How many remain?", "{a}-{b}", ANIMALS),
        Template(
            "From a herd of {a} {things}, {name} leads {b} away. How many are left in the herd?", "{a}-{b}", ANIMALS
        ),
    ),
    both=(
        Template("{name} has {a} {things}, buys {b} more and gives {c} away. How many are left?", "{a}+{b}-{c}"),
        Template("{name} had {a} {things}, lost {c}, then found {b}. How many are there now?", "{a}-{c}+{b}"),
        Template("There are {c} red, {b} blue and {a} green {things}. How many in all?", "{c}+{b}+{a}"),
        Template("A shop had {a} {things}. It sold {b}, then got {c} new ones. How many now?", "{a}-{b}+{c}"),
        Template("{name} and {other} have {a} and {b} {things}. They use {c}. How many remain?", "{a}+{b}-{c}"),
        Template("{name} ate {c} {things}, {other} ate {b}, and {a} are left. How many were there?", "{c}+{b}+{a}"),
    ),
    names=("Anna", "Ben", "Carl", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivan", "Jane", "Kim", "Leo"),
    gained=("bought", "found", "won", "got", "collected", "borrowed", "earned", "stored"),
    lost=("lost", "sold", "gave away", "dropped", "threw away", "used", "hid", "broke"),
)

VALIDATION = World(
    addition=(
        Template(
            "{name} caught {a} {things} and {other} caught {b}. How many did they catch altogether?", "{a}+{b}", FISH
        ),
        Template(
            "A library owned {a} {things} and bought {b} new ones. How many does it own in all?", "{a}+{b}", MEDIA
        ),
        Template(
            "{a} {things} grow in the front garden and {b} behind it. How many grow there together?", "{a}+{b}", SHRUBS
        ),
    ),
    subtraction=(
        Template("{a} {things} sat on a roof until {b} flew away. How many still sit there?", "{a}-{b}", BIRDS),
        Template("{name} baked {a} {things}, and the children ate {b}. How many are left over?", "{a}-{b}", CAKES),
        Template("{a} {things} hung on a line and {b} blew off. How many remain hanging?", "{a}-{b}", CLOTHES),
    ),
    both=(
        Template("A train starts with {a} {things}; {b} leave and {c} join. How many ride on?", "{a}-{b}+{c}", RIDERS),
        Template(
            "{name} waters {a} {things}, {other} waters {b}, but {c} dry up. How many live?", "{a}+{b}-{c}", SHRUBS
        ),
        Template("Three parks hold {a}, {b} and {c} {things}. How many do all parks hold?", "{a}+{b}+{c}", SHRUBS),
    ),
    names=("Oskar", "Priya", "Quinn", "Rosa", "Sven", "Tala", "Umar", "Vera"),
)

WORLDS: dict[Split, World] = {"train": TRAIN, "validation": VALIDATION}
PATIENCE = 2000
"""Repeated draws in a row after which there are taken to be no more problems."""

DIFFICULTIES = {1: "one operation, two digits", 2: "one operation, three digits", 3: "two operations, two digits"}


class CalculatorTaskReader(TaskReaderBase):
    """Makes the tasks when a run starts.

    Args:
        training: how many to train on.
        validation: how many are held out.
        difficulties: keys of DIFFICULTIES.
    """

    def __init__(
        self,
        config: TaskReaderConfig,
        *,
        base_dir: Path | None = None,
        training: int = 1000,
        validation: int = 96,
        seed: int = 0,
        difficulties: Sequence[int] = (1,),
    ) -> None:
        super().__init__(config, base_dir=base_dir)
        self.training, self.validation = training, validation
        self.seed, self.difficulties = seed, tuple(difficulties)

    def training_tasks(self) -> list[Task]:
        return make_tasks("train", self.training, seed=self.seed, difficulties=self.difficulties)

    def validation_tasks(self) -> list[Task]:
        return make_tasks("validation", self.validation, seed=self.seed, difficulties=self.difficulties)


def make_tasks(split: Split, number: int, *, seed: int = 0, difficulties: tuple[int, ...] = (1,)) -> list[Task]:
    """`number` different problems; the first ones of a longer list are the same as those of a shorter one."""
    draw = random.Random(f"{split}/{seed}")
    return different_tasks(
        f"calculator-{split}-{seed}",
        number,
        lambda index: _problem(split, draw, draw.choice(difficulties), SINGLE[index % 2]),
    )


def different_tasks(name: str, number: int, problem: Callable[[int], dict[str, Any]]) -> list[Task]:
    """Return `number` tasks of the calculator with different queries.

    Args:
        name: the beginning of their ids.
        problem: draws the main query and the metadata of a task, given how many there are before it.

    Raises:
        TaskReaderError: there are no more.
    """
    tasks: dict[str, Task] = {}
    repeats = 0
    while len(tasks) < number:
        made = problem(len(tasks))
        if made["main_query"] in tasks:
            repeats += 1
            if repeats > PATIENCE:
                raise TaskReaderError(
                    f"only {len(tasks)} of {number} different problems were found",
                    hint="ask for fewer, or add difficulties",
                )
            continue
        repeats = 0
        tasks[made["main_query"]] = Task(task_id=f"{name}-{len(tasks):05d}", env_type="calculator", **made)
    return list(tasks.values())


def numbers_of(split: Split, largest: int) -> list[int]:
    """Return the numbers of a split's problems up to `largest`, of as many digits."""
    return [n for n in range(largest // 10 + 1, largest + 1) if (n % 4 == 3) == (split == "validation")]


def _problem(split: Split, draw: random.Random, difficulty: int, single: Operation) -> dict[str, Any]:
    world = WORLDS[split]
    operation: Operation = "both" if difficulty == 3 else single
    template = draw.choice(getattr(world, operation))
    largest = 999 if difficulty == 2 else 99
    numbers = numbers_of(split, largest)
    c, b, a = sorted(draw.sample(numbers, 3)) if operation == "both" else [0, *sorted(draw.sample(numbers, 2))]
    name, other = draw.sample(world.names, 2)
    words = {"a": a, "b": b, "c": c, "name": name, "other": other, "things": draw.choice(template.things)}
    words |= {"gained": draw.choice(world.gained), "lost": draw.choice(world.lost)} if world.gained else {}
    expression = template.expression.format(**words)
    answer = format_number(calculate(expression))
    text = template.text.format(**words)
    return {
        "main_query": text,
        "metadata": {
            "answer": answer,
            "expression": expression,
            "operation": operation,
            "difficulty": difficulty,
            "template": template.text,
            "baseline": float(cue_words(text) == ("-" in expression)),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write word problems for the calculator, one JSON object a line.")
    parser.add_argument("--split", choices=list(WORLDS), default="train")
    parser.add_argument("--number", type=int, default=1000, help="how many problems (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    levels = ", ".join(f"{level}: {text}" for level, text in DIFFICULTIES.items())
    parser.add_argument("--difficulty", type=int, nargs="+", choices=list(DIFFICULTIES), default=[1], help=levels)
    parser.add_argument("--output", type=Path, required=True, help="the JSONL file to write")
    arguments = parser.parse_args()
    tasks = make_tasks(arguments.split, arguments.number, seed=arguments.seed, difficulties=tuple(arguments.difficulty))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    rows = ({name: value for name, value in asdict(task).items() if value} for task in tasks)
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    arguments.output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
