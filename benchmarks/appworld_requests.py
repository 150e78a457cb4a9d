"""A small world for AppWorld's engine: people with notes in Simple Note, requests, tests, and code that does them.

Names, notes and requests are made here from a seed; `tests/env_service/make_small_appworld.py` makes AppWorld's
databases of them. There are three kinds of requests:

    count     how many notes about a topic there are
    read      the number that a note says
    write     a new note

Requests that are demonstrated (`shown`), trained (`train`) and held out (`dev`) are of different people,
and worded alike. Those held out have names, topics, things and contents of their own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

KINDS = ("count", "read", "write")
WORDINGS = {
    "count": (
        "How many notes about {topic} do I have in Simple Note?",
        "Count my Simple Note notes about {topic}.",
        "Of my notes in Simple Note, how many are about {topic}?",
        "I want to know how many {topic} notes there are in my Simple Note.",
        "Find out how many notes I wrote about {topic} in Simple Note.",
        "What is the number of my notes about {topic} in Simple Note?",
        "Give me the count of {topic} notes in my Simple Note account.",
        "Please check how many Simple Note notes of mine are about {topic}.",
    ),
    "read": (
        "Which number does my note titled {title} in Simple Note say?",
        "Look up the number in my Simple Note note {title}.",
        "What does my note {title} in Simple Note say?",
        "I forgot the number in my note {title}. Find it in Simple Note.",
        "Tell me what I wrote in the Simple Note note {title}.",
        "Open my note {title} in Simple Note and give me its number.",
        "There is a number in {title}, one of my notes in Simple Note. Which one is it?",
        "Read me the note titled {title} from Simple Note.",
    ),
    "write": (
        "Write a note titled {title} in Simple Note that says {content}.",
        "Make a Simple Note note {title} with the content {content}.",
        "Create a new note in Simple Note. Title: {title}. Content: {content}.",
        "Save {content} in Simple Note, in a new note titled {title}.",
        "Add a note to my Simple Note with the title {title} and the text {content}.",
        "Note down {content} for me in Simple Note under the title {title}.",
        "Put a new note into Simple Note, titled {title}. It should say {content}.",
        "Please start a Simple Note note called {title} and write {content} in it.",
    ),
}
WORDS = {
    "train": {
        "first name": "Ada Adam Anna Arthur Ben Bella Brian Caleb Clara Connor Daisy David Dennis Diana Edith Edward "
        "Ella Emma Ethan Eva Felix Finn Fiona Frida George Grace Gregory Hannah Harold Henry Holly Hugo Ian Iris Isaac "
        "Ivy Jack Jane Joel Judith Kate Kevin Kurt Leo Lily Logan Luke Lydia Marcus Mary Max Mia Miles Naomi Noah Nora "
        "Olive Oliver Owen Paul Pearl Philip Quentin Rachel Ralph Rita Robert Rose Ruth Samuel Sarah Simon Stella "
        "Thomas Tina Victor Violet Walter Wendy Zoe",
        "last name": "Adams Baker Bishop Carter Cole Dixon Evans Fisher Grant Hughes Hunter Irving Jones Keller Lewis "
        "Mason Morgan Nolan Palmer Reed Stone Turner Walker Young",
        "topic": "Garden Kitchen School Soccer Paris Camping Piano Wedding Car Office Boat Winter Dog Cinema Berlin "
        "Guitar",
        "thing": "budget list plan ideas dates tools guests photos costs rules names repairs",
        "content": "milk bread rice shoes tickets stamps paint candles flour soap",
    },
    "dev": {
        "first name": "Alice Amelia Bruno Carol Cecil Dora Eric Esther Frank Gloria Helen Howard Ivan Julia Karl Laura "
        "Martin Nina Oscar Peter Rosa Steven Teresa Vincent",
        "last name": "Archer Brown Cooper Doyle Ellis Foster Green Harris James King Long Miller Norris Porter Ross",
        "topic": "House Tennis London Hiking Violin Birthday Bike Summer Museum Chess",
        "thing": "prices notes map tips times parts friends pictures bills steps",
        "content": "eggs apples tea boots maps lamps books ribbons",
    },
}
"""AppWorld has each first name once."""

TESTS = """
from appworld.evaluator import *

def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("simple_note.Note")
    with test("assert answers match."):
        test.answer(models.end.supervisor.Task.find_all()[-1].answer, ground_truth_answer)
    with test("assert the notes asked for were written."):
        test.case([[note.title, note.content] for note in added], "==", {added!r})
    with test("assert no other note and no other model changed."):
        test.case([*updated, *removed], "==", [])
        test.case(models.changed_model_names(), "==", {changed!r})
"""

LOGIN = """password = apis.supervisor.show_account_passwords()[0]["password"]
token = apis.simple_note.login(username="{email}", password=password)["access_token"]
"""
LIST = f"{LOGIN}notes = apis.simple_note.search_notes(access_token=token, page_limit=20)\n"
SOLUTIONS = {
    "count": (
        "I count the notes about {topic}.",
        LIST + """apis.supervisor.complete_task(answer=sum("{topic}" in note["title"] for note in notes))""",
    ),
    "read": (
        "I look for the note and read it.",
        LIST
        + """found = next(note["note_id"] for note in notes if note["title"] == "{title}")
apis.supervisor.complete_task(answer=apis.simple_note.show_note(access_token=token, note_id=found)["content"])""",
    ),
    "write": (
        "I write the note.",
        LOGIN
        + """apis.simple_note.create_note(access_token=token, title="{title}", content="{content}")
apis.supervisor.complete_task()""",
    ),
}


def world(people: dict[str, int], seed: int) -> dict[str, Any]:
    """People and tasks in the form that `make_small_appworld.py` reads; each person has a request of each kind.

    Args:
        people: how many there are in each split. `dev` is the held-out one.
    """
    chance = random.Random(seed)
    made: dict[str, Any] = {"people": [], "tasks": {}}
    taken = set[str]()
    for split, number in people.items():
        for at in range(number):
            place = len(made["people"])
            first = chance.choice([name for name in _words(split, "first name") if name not in taken])
            taken.add(first)
            notes, topics = _notes(split, chance)
            made["people"].append(_person(place, first, chance.choice(_words(split, "last name")), notes))
            for kind in KINDS:
                task = _task(kind, split, notes, topics, chance)
                made["tasks"][f"{split}{at}_{kind}"] = {"split": split, "person": place, **task}
    return made


def _words(split: str, kind: str) -> list[str]:
    return WORDS["dev" if split == "dev" else "train"][kind].split()


def _person(place: int, first: str, last: str, notes: dict[str, str]) -> dict[str, Any]:
    return {
        "first_name": first,
        "last_name": last,
        "email": f"{first}.{last}@example.com".lower(),
        "phone_number": f"5550{place:03}",
        "password": f"pass-{place:03}",
        "notes": notes,
    }


def _notes(split: str, chance: random.Random) -> tuple[dict[str, str], list[str]]:
    """A person's notes, of three topics with one to four each, and the topics."""
    topics = chance.sample(_words(split, "topic"), 3)
    titles = [
        f"{topic} {thing}" for topic in topics for thing in chance.sample(_words(split, "thing"), chance.randint(1, 4))
    ]
    chance.shuffle(titles)
    return {title: str(chance.randint(10, 999)) for title in titles}, topics


def _task(kind: str, split: str, notes: dict[str, str], topics: Sequence[str], chance: random.Random) -> dict[str, Any]:
    topic, title = chance.choice(topics), chance.choice(list(notes))
    content = chance.choice(_words(split, "content"))
    if kind == "write":
        title = chance.choice(
            [new for each in topics for thing in _words(split, "thing") if (new := f"{each} {thing}") not in notes]
        )
    answer = {"count": sum(topic in each for each in notes), "read": notes.get(title)}.get(kind)
    added, changed = ([[title, content]], {"simple_note.Note"}) if kind == "write" else ([], set[str]())
    values = {"topic": topic, "title": title, "content": content}
    return {
        "instruction": chance.choice(WORDINGS[kind]).format(**values),
        "answer": answer,
        "code": TESTS.format(added=added, changed=changed),
        "tests": {
            "assert answers match.": "no_op_fail",
            "assert the notes asked for were written.": "no_op_fail" if added else "no_op_pass",
            "assert no other note and no other model changed.": "no_op_fail" if changed else "no_op_pass",
        },
        "values": values,
    }


def solution(task_id: str, made: dict[str, Any]) -> str:
    """What an agent writes that does the request."""
    task = made["tasks"][task_id]
    email = made["people"][task["person"]]["email"]
    words, code = SOLUTIONS[kind_of(task_id)]
    return f"{words}\n```python\n{code}\n```".format(email=email, **task["values"])


def kind_of(task_id: str) -> str:
    return task_id.partition("_")[2]
