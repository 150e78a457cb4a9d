"""The words that the calculator's problems are made of: those of training, and others that are only measured on.

No verb, no question, no name and no thing of one is in the other. Held-out questions are the same for both operations:
only what happened says whether to add or to take away, and it is told in words never trained on. Half of the training
questions say it too ("in all", "left"): without them an untrained model is right so seldom that it settles on one sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gain", "loss", "arrival", "departure", "whole", "part"]


@dataclass(frozen=True, slots=True)
class Wording:
    """Sentences over {a} > {b}; {name} and {other} are people, {things} what is counted, {one} and {two} its sorts.

    Gains and losses follow one of `owned` and end in one of `owned_now`, arrivals and departures follow one of `there`
    and end in one of `there_now`, where they do not end in one of `cued`; wholes and parts are whole problems.
    """

    names: tuple[str, ...]
    things: tuple[str, ...]
    crowds: tuple[str, ...]
    places: tuple[str, ...]
    sorts: tuple[tuple[str, str], ...]
    owned: tuple[str, ...]
    owned_now: tuple[str, ...]
    there: tuple[str, ...]
    there_now: tuple[str, ...]
    moments: tuple[str, ...]
    cued: dict[Kind, tuple[str, ...]]
    """Questions that say which operation is asked for."""
    events: dict[Kind, tuple[str, ...]]


TRAIN = Wording(
    names=("Anna", "Ben", "Carl", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivan", "Jane", "Kim", "Leo"),
    things=(
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
        "keys",
        "candles",
    ),
    crowds=("guests", "pupils", "tourists", "visitors", "goats", "sheep", "deer", "frogs", "ducks"),
    places=("a hall", "a park", "a bus", "a garden", "a barn", "a yard", "a tent"),
    sorts=(("red", "blue"), ("old", "new"), ("big", "small"), ("clean", "dirty"), ("round", "square")),
    owned=(
        "{name} had {a} {things}.",
        "{name} owned {a} {things}.",
        "{a} {things} were in {name}'s bag.",
        "{name} started the week with {a} {things}.",
        "On {name}'s shelf were {a} {things}.",
    ),
    owned_now=(
        "How many {things} does {name} have now?",
        "How many {things} has {name} now?",
        "How many {things} does {name} own after that?",
        "What is {name}'s number of {things} now?",
        "Count the {things} of {name}.",
    ),
    there=(
        "There were {a} {things} in {place}.",
        "{a} {things} stood in {place}.",
        "In {place} were {a} {things}.",
        "{name} saw {a} {things} in {place}.",
    ),
    there_now=(
        "How many {things} are there now?",
        "How many {things} does that make now?",
        "What is the number of {things} there now?",
        "How many {things} were there after that?",
        "Count the {things} there.",
    ),
    moments=("", "Then ", "Later ", "On Friday ", "After lunch ", "That day "),
    cued={
        "gain": ("How many {things} does {name} have in all?", "How many {things} is that altogether?"),
        "loss": ("How many {things} does {name} have left?", "How many {things} does {name} still have?"),
        "arrival": ("How many {things} are there in all?", "How many {things} is that altogether?"),
        "departure": ("How many {things} are left?", "How many {things} are still there?"),
    },
    events={
        "gain": (
            "{name} found {b}.",
            "{name} bought {b}.",
            "{name} won {b}.",
            "{name} picked up {b}.",
            "{name} collected {b}.",
            "{name} made {b}.",
            "{name} earned {b}.",
            "{name} dug up {b}.",
            "{name} brought home {b}.",
            "{name} got {b} as a present.",
            "{name} got {b} from a friend.",
            "{name} borrowed {b} from {other}.",
            "{name} took {b} from {other}.",
            "{name} was sent {b} by an uncle.",
            "{name} ordered {b} at a shop.",
            "{name} stole {b}.",
            "{name} fetched {b} from a cellar.",
            "{name} discovered {b} in a box.",
            "{name} chose {b} at a market and paid for them.",
            "{name} added {b}.",
            "{name} was paid with {b}.",
            "{other} brought {name} {b}.",
            "{other} lent {name} {b}.",
            "{b} came for {name} by post.",
        ),
        "loss": (
            "{name} lost {b}.",
            "{name} sold {b}.",
            "{name} gave away {b}.",
            "{name} gave {b} to {other}.",
            "{name} dropped {b} into a river.",
            "{name} threw away {b}.",
            "{name} threw {b} over a wall.",
            "{name} used up {b}.",
            "{name} burned {b}.",
            "{name} broke {b}.",
            "{name} forgot {b} on a train.",
            "{name} had {b} stolen.",
            "{name} spent {b}.",
            "{name} left {b} at school.",
            "{name} mailed {b} to a cousin.",
            "{name} lent {b} to a neighbour.",
            "{name} returned {b} to a shop.",
            "{name} traded {b} for a hat.",
            "{name} sent back {b}.",
            "{name} crushed {b}.",
            "{name} had to pay {b}.",
            "{other} took {b} from {name}.",
            "{other} won {b} from {name}.",
            "{b} fell through a hole and were gone.",
        ),
        "arrival": (
            "{b} came in.",
            "{b} arrived.",
            "{b} joined them.",
            "{b} were let in.",
            "{b} walked in.",
            "{b} ran in.",
            "{b} were brought there.",
            "{b} stepped inside.",
            "{b} crept in.",
            "{b} hurried over to them.",
            "{b} were carried in.",
            "{b} were added.",
            "{b} sat down beside them.",
            "{b} moved in.",
            "a second group of {b} came.",
            "a guide brought {b}.",
            "they were met by {b}.",
            "they let {b} come along.",
        ),
        "departure": (
            "{b} went home.",
            "{b} walked out.",
            "{b} ran away.",
            "{b} were sent out.",
            "{b} disappeared.",
            "{b} left.",
            "{b} were led away.",
            "{b} got lost.",
            "{b} stepped outside.",
            "{b} crept out.",
            "{b} hurried off.",
            "{b} were carried off.",
            "{b} were taken elsewhere.",
            "{b} moved out.",
            "a group of {b} went away.",
            "a guide took {b} outside.",
            "they lost {b} of their number.",
            "they let {b} go.",
        ),
        "whole": (
            "{name} has {a} {one} {things}. {b} others are {two}. How many {things} does {name} have?",
            "{a} of {name}'s {things} are {one} and {b} are {two}. How many {things} does {name} have?",
            "A box holds {a} {one} {things} and {b} {two} ones. How many {things} does it hold?",
            "{name} counts {a} {one} {things}, then {b} {two} ones. How many {things} did {name} count?",
            "{name} keeps {a} {things} at home and {b} at school. How many {things} does {name} keep?",
            "{name} has {a} {things} and {other} has {b}. How many {things} do they have?",
            "{name} saw {a} {things} on Monday and {b} on Tuesday. How many {things} is that?",
            "{a} {things} lie on a table and {b} under it. How many {things} is that?",
            "A shop sold {a} {things} to {name} and {b} to {other}. How many {things} did it sell?",
            "{name} lost {a} {one} {things} and {b} {two} ones. How many {things} did {name} lose?",
        ),
        "part": (
            "{name} has {a} {things}. {b} are {one}, the others are {two}. How many {things} are {two}?",
            "Of {name}'s {a} {things} {b} are {one} and the others {two}. How many {things} are {two}?",
            "A box holds {a} {things}, {b} {one} and the others {two}. How many {two} {things} does it hold?",
            "{name} counts {a} {things}: {b} {one} ones and some {two} ones. How many {two} {things} did {name} count?",
            "{name} keeps {a} {things}, {b} at home and the others at school. How many {things} are at school?",
            "{name} and {other} have {a} {things}, and {b} are {name}'s. How many {things} does {other} have?",
            "{name} saw {a} {things} on two days, {b} on Monday. How many {things} did {name} see on Tuesday?",
            "{a} {things} lie on a table or under it, {b} on it. How many {things} lie under it?",
            "A shop sold {a} {things}, {b} to {name}, the others to {other}. How many {things} did {other} buy?",
            "{name} lost {a} {one} and {two} {things}. {b} were {one}. How many {two} {things} did {name} lose?",
        ),
    },
)

VALIDATION = Wording(
    names=("Oskar", "Priya", "Quinn", "Rosa", "Sven", "Tala", "Umar", "Vera"),
    things=("muffins", "towels", "maps", "lilacs", "comics", "socks", "films", "pies"),
    crowds=("soldiers", "dancers", "nurses", "gulls", "doves", "hens"),
    places=("a harbour", "a library", "a train", "a meadow", "a museum"),
    sorts=(("wet", "dry"), ("cheap", "costly")),
    owned=("{name}'s collection held {a} {things}.", "At breakfast {name} possessed {a} {things}."),
    owned_now=(
        "How large is {name}'s collection of {things} today?",
        "With how many {things} does {name} end up?",
    ),
    there=("{a} {things} filled {place}.", "{place} was occupied by {a} {things}."),
    there_now=("With {things} of what number does this end?", "How large is the crowd of {things} finally?"),
    moments=("Soon ", "At noon ", "In the evening ", "A week afterwards "),
    cued={},
    events={
        "gain": (
            "{name} received {b}.",
            "{name} gathered {b}.",
            "{name} inherited {b}.",
            "{name} acquired {b}.",
            "{name} unearthed {b}.",
            "{name} accepted {b} as a gift.",
            "a parcel reached {name} containing {b}.",
            "{name} was rewarded with {b}.",
        ),
        "loss": (
            "{name} donated {b}.",
            "{name} misplaced {b}.",
            "{name} discarded {b}.",
            "{name} destroyed {b}.",
            "{name} was robbed of {b}.",
            "{name} handed out {b}.",
            "a thief grabbed {b}.",
            "{name} surrendered {b}.",
        ),
        "arrival": (
            "{b} entered.",
            "{b} turned up.",
            "{b} climbed aboard.",
            "{b} followed.",
            "{b} were welcomed.",
            "{b} landed there.",
            "{b} showed themselves too.",
        ),
        "departure": (
            "{b} departed.",
            "{b} fled.",
            "{b} escaped.",
            "{b} said goodbye.",
            "{b} vanished.",
            "{b} were expelled.",
            "{b} retreated.",
        ),
        "whole": (
            "{name} planted {a} roses and {b} tulips. What was the number of flowers planted?",
            "{a} boys and {b} girls visit a castle. What is the number of children visiting?",
            "{name} drove {a} miles by car and {b} by bike. What distance did {name} travel?",
            "A zoo feeds {a} lions and {b} bears. What is the number of animals fed?",
            "A choir consists of {a} women and {b} men. What is the size of the choir?",
        ),
        "part": (
            "{name} planted {a} flowers, {b} being roses and everything else tulips. What was the number of tulips?",
            "{a} children visit a castle, {b} being boys. What is the number of girls?",
            "{name} travelled {a} miles, {b} by car, the remainder by bike. What distance did {name} cycle?",
            "A zoo feeds {a} animals, lions and bears. It feeds {b} lions. What is the number of bears?",
            "A choir consists of {a} people, {b} being women. What is the number of men?",
        ),
    },
)
