"""Makes a small valid world of AppWorld's, in its own Python: `python make_small_appworld.py FOLDER [WORLD.json]`.

Everything comes from the installed package's own models; nothing of it is part of the project, and it is made anew for
each session of tests. Without a file there is one person, Joe Hill, with four notes. The tasks:

    travel_1      a question, which the tutorial's example solves (train)
    groceries_1   a note to be written; four tests, of which one passes for an agent that does nothing (train)
    music_1       a question (dev)

A file holds other people and tasks, in the form of `WORLD`; a task's `person` is a place in the list of people.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

JOE = {
    "first_name": "Joe",
    "last_name": "Hill",
    "email": "joe.hill@example.com",
    "phone_number": "5550100",
}
TITLES = ("Travel budget", "Travel to Oslo", "Guitar strings", "Birthdays")
NOW = "2023-05-08T09:00:00"

QUESTION_TESTS = """
from appworld.evaluator import *

def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    with test("assert answers match."):
        test.answer(models.end.supervisor.Task.find_all()[-1].answer, ground_truth_answer)
    with test("assert no model changed."):
        test.case(models.changed_model_names(), "==", set())
"""
NOTE_TESTS = """
from appworld.evaluator import *

def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("simple_note.Note")
    with test("assert only notes changed."):
        test.case(models.changed_model_names(), "==", {"simple_note.Note"})
    with test("assert no note was removed."):
        test.case(list(removed), "==", [])
    with test("assert the new note is titled Groceries."):
        test.case([note.title for note in added], "==", ["Groceries"])
    with test("assert the new note says milk."):
        test.case([note.content for note in added], "==", ["milk"])
"""

TASKS = {
    "travel_1": {
        "split": "train",
        "person": 0,
        "instruction": "How many notes about travel do I have in Simple Note?",
        "answer": 2,
        "code": QUESTION_TESTS,
        "tests": {"assert answers match.": "no_op_fail", "assert no model changed.": "no_op_pass"},
    },
    "groceries_1": {
        "split": "train",
        "person": 0,
        "instruction": "Write a note titled Groceries in Simple Note that says milk.",
        "answer": None,
        "code": NOTE_TESTS,
        "tests": {
            "assert only notes changed.": "no_op_fail",
            "assert no note was removed.": "no_op_pass",
            "assert the new note is titled Groceries.": "no_op_fail",
            "assert the new note says milk.": "no_op_fail",
        },
    },
    "music_1": {
        "split": "dev",
        "person": 0,
        "instruction": "How many notes about music do I have in Simple Note?",
        "answer": 1,
        "code": QUESTION_TESTS,
        "tests": {"assert answers match.": "no_op_fail", "assert no model changed.": "no_op_pass"},
    },
}
WORLD = {
    "people": [{**JOE, "password": "winter-12", "notes": {title: f"{title}: nothing yet" for title in TITLES}}],
    "tasks": TASKS,
}


def main(root: Path, world: dict[str, Any]) -> None:
    data = root / "data"
    shutil.rmtree(data, ignore_errors=True)
    os.environ.update(APPWORLD_ROOT=str(root), APPWORLD_CACHE=str(root / ".cache"))
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import DB_VERSION

    apps = get_all_apps()
    docs = ApiDocCollection.build(tuple(apps))
    for app, own in docs.items():
        marked = {name: {**doc, "canary_string": ""} for name, doc in own.items()}
        write(data / "api_docs" / "standard" / f"{app}.json", marked)

    places = {"to_db_home_path": ":memory:base", "from_db_home_path": ":memory:base"}
    models = ModelCollection.load(**places, load_apps=apps, create_db=True)
    add_docs(models, docs)
    for person in world["people"]:
        add_person(models, person)
    active = add_active(models, world["people"][0])
    models.save(db_home_path=str(data / "base_dbs"), app_names=apps, delete_if_exists=True)

    for task_id, task in world["tasks"].items():
        folder = data / "tasks" / task_id
        models.restart_db_tracker()  # what is different in a task is all that is saved of it
        set_active(active, world["people"][task["person"]], task["instruction"])
        models.save(db_home_path=str(folder / "dbs"), app_names=apps, delete_if_exists=True, format="changes")
        set_active(active, world["people"][0], "?")
        specification = {"instruction": task["instruction"], "supervisor": profile_of(world["people"][task["person"]])}
        write(folder / "specs.json", {**specification, "datetime": NOW, "db_version": DB_VERSION})
        write_reference(folder / "ground_truth", task)
    for split in sorted({task["split"] for task in world["tasks"].values()}):
        ids = [task_id for task_id, task in world["tasks"].items() if task["split"] == split]
        write(data / "datasets" / f"{split}.txt", "".join(f"{task_id}\n" for task_id in ids))
    write(data / "version.txt", DB_VERSION)


def add_docs(models: Any, docs: dict[str, dict[str, dict[str, Any]]]) -> None:
    columns = ("path", "method", "description", "parameters", "response_schemas")
    for app, own in docs.items():
        rows = [
            models.api_docs.ApiDoc(app_name_=app, api_name=name, **{column: doc[column] for column in columns})
            for name, doc in own.items()
            if app != "admin"
        ]
        if rows:
            models.api_docs.ApiDoc.save_all(rows)


def add_person(models: Any, person: dict[str, Any]) -> None:
    from appworld.common.utils import import_factories_module

    import_factories_module("admin").MainUserFactory.build(**profile_of(person)).save()
    name = {key: person[key] for key in ("first_name", "last_name", "email")}
    user = models.simple_note.User(**name, password=person["password"], verified=True)
    user.save()
    for title, content in person["notes"].items():
        models.simple_note.Note(user_id=user.id, title=title, content=content).save()


def add_active(models: Any, person: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The rows that say whose request is done: the person, their password, and the request."""
    supervisor = models.supervisor.Supervisor(**profile_of(person), birthday="1990-01-01")
    supervisor.save()
    owned = {"supervisor_id": supervisor.id}
    password = models.supervisor.AccountPassword(**owned, account_name="simple_note", password=person["password"])
    password.save()
    request = models.supervisor.Task(**owned, instruction="?")
    request.save()
    return supervisor, password, request


def set_active(active: tuple[Any, Any, Any], person: dict[str, Any], instruction: str) -> None:
    supervisor, password, request = active
    for key, value in profile_of(person).items():
        setattr(supervisor, key, value)
    password.password = person["password"]
    request.instruction = instruction
    for row in active:
        row.save()


def profile_of(person: dict[str, Any]) -> dict[str, Any]:
    return {key: person[key] for key in ("first_name", "last_name", "email", "phone_number")}


def write_reference(folder: Path, task: dict[str, Any]) -> None:
    counts = {"num_apps": 1, "num_apis": 2, "num_api_calls": 2, "num_solution_code_lines": 3}
    write(folder / "metadata.json", {"mode": "minimal", "difficulty": 1, **counts})
    write(folder / "public_data.json", {})
    write(folder / "private_data.json", {})
    write(folder / "answer.json", json.dumps(task["answer"]))
    write(folder / "required_apps.json", ["simple_note"])
    tests = [{"requirement": requirement, "label": label} for requirement, label in task["tests"].items()]
    write(folder / "test_data.json", tests)
    write(folder / "evaluation.py", task["code"])


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content, default=str), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), json.loads(Path(sys.argv[2]).read_text()) if sys.argv[2:] else WORLD)
