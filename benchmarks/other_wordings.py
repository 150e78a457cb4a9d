"""Stories by somebody who had seen neither the training sentences of the calculator tutorial nor its held-out ones."""

from tutorial.example_calculator.wordings import Wording

OTHERS = Wording(
    names=("Odalys", "Thaddeus", "Ingvild", "Zuleika", "Oswin", "Leocadia", "Quillon", "Wendeline"),
    things=("thimbles", "postcards", "marbles", "whistles", "seashells", "bookmarks", "badges", "keyrings"),
    crowds=("children", "tourists", "dogs", "goats", "dancers", "reporters", "ponies", "scouts"),
    places=("a stadium", "a market square", "a castle courtyard", "a park", "a circus tent", "a riverside meadow"),
    sorts=(("striped", "plain"), ("large", "tiny"), ("blue", "white")),
    owned=(
        "{name} has {a} {things}.",
        "{name} is the proud owner of {a} {things}.",
        "There are {a} {things} in {name}'s collection.",
        "{name} began the week with {a} {things}.",
        "{name} had collected {a} {things} by the end of the summer.",
        "On {name}'s shelf there are {a} {things}, the only ones {name} has.",
    ),
    owned_now=(
        "How many {things} does {name} have now?",
        "After this, how many {things} does {name} have?",
        "What is the number of {things} that {name} has now?",
        "Now how many {things} belong to {name}?",
        "If {name} counts the {things} again, how many will there be?",
        "How many {things} does {name} own at this point?",
    ),
    there=(
        "There are {a} {things} in {place}.",
        "{a} {things} have gathered in {place}.",
        "In {place} there are {a} {things}.",
        "A photographer counts {a} {things} in {place}.",
        "On a sunny afternoon {a} {things} were in {place}.",
        "Early in the day there were {a} {things} in {place}.",
    ),
    there_now=(
        "How many {things} are there now?",
        "After this, how many {things} are there?",
        "What is the number of {things} there now?",
        "Now how many {things} are in that place?",
        "If you count the {things} there again, how many will there be?",
        "How many {things} are present at this point?",
    ),
    moments=("Meanwhile ", "The next morning ", "Soon afterwards ", "A little later ", "After lunch "),
    cued={},
    events={
        "gain": (
            "{name} picked up {b} more at a flea market.",
            "{other} presented {name} with {b} more as a birthday gift.",
            "{name} won {b} more in a raffle.",
            "a parcel came for {name} with {b} more inside.",
            "{name} inherited {b} more from an aunt.",
            "{other} added {b} of a new kind to {name}'s collection.",
            "{name} ordered {b} extra, and they arrived in the post.",
            "{b} more were given to {name} by a kind neighbour.",
        ),
        "loss": (
            "{name} donated {b} of them to a museum.",
            "a thief stole {b} of them.",
            "{name} threw {b} of them into the rubbish bin.",
            "{other} received {b} of them from {name} as a present.",
            "{b} of them fell into a river and were never seen again.",
            "{name} traded {b} of them for a kite.",
            "a fire destroyed {b} of them.",
            "{name} let {other} have {b} of them for good.",
        ),
        "arrival": (
            "{b} more arrived.",
            "they were joined by {b} newcomers.",
            "{b} latecomers hurried in.",
            "a large truck brought in {b} more.",
            "a second group of {b} came to join them.",
            "from the next village came {b} more.",
            "the gate opened and {b} more walked in.",
            "an extra {b} turned up.",
        ),
        "departure": (
            "{b} of them departed.",
            "{b} of them walked back to their village.",
            "a ferry took {b} of them to an island.",
            "the rain drove {b} of them to a shelter down the road.",
            "{b} of them ran to the beach and did not come back.",
            "{b} of them followed a drummer to the next town.",
            "{b} got bored and went elsewhere.",
            "a truck came and carried {b} of them back to the city.",
        ),
        "whole": (
            "On Monday {name} read {a} pages of a novel, and on Tuesday {b}. How many pages did "
            "{name} read on these two days?",
            "Each of {name}'s {things} is either {one} or {two}: {a} are {one} and {b} are {two}. "
            "How many {things} does {name} have?",
            "A baker made {a} rolls in the morning and {b} in the afternoon. How many rolls did the "
            "baker make that day?",
            "A library has two floors, with {a} chairs on the lower floor and {b} on the upper one. "
            "How many chairs are there in the library?",
            "{name} picked {a} pears and {other} picked {b}, and they put them into one empty "
            "basket. How many pears are in the basket?",
            "The passengers on a ferry are {a} adults and {b} children. How many passengers are on the ferry?",
        ),
        "part": (
            "Of the {a} {things} in a box, {b} are {one} and the rest are {two}. How many of them are {two}?",
            "{name} and {other} baked {a} biscuits between them, and {name} made {b} of these. How "
            "many biscuits did {other} make?",
            "A theatre has {a} seats, and {b} of them are taken. How many seats are free?",
            "{a} runners entered a race, and {b} of them reached the finish. How many runners did not finish?",
            "Over the weekend a museum had {a} visitors, {b} of them on Saturday. How many visitors came on Sunday?",
            "A novel has {a} pages, and {name} has read {b} of them. How many pages has {name} not read yet?",
        ),
    },
)
