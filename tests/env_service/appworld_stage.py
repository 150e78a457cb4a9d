"""AppWorld's service as `--with-appworld` starts it, and code for the small world."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from service_stage import ROOT, Service, running

SCRIPT = ROOT / "astune" / "env_service" / "appworld_server.py"

SECRET = "the-servers-key"

LOGIN = 'token = apis.simple_note.login(username="joe.hill@example.com", password="winter-12")["access_token"]\n'
WRITE_MILK = LOGIN + 'apis.simple_note.create_note(access_token=token, title="Groceries", content="milk")'
WRITE_EGGS = LOGIN + 'apis.simple_note.create_note(access_token=token, title="Groceries", content="eggs")'
COUNT_NOTES = LOGIN + "print(len(apis.simple_note.search_notes(access_token=token, page_limit=20)))"
COMPLETE = "apis.supervisor.complete_task()"


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def places(root: Path) -> str:
    """Code that names what the agent of `groceries_1` may not reach."""
    data = root / "data"
    known = {
        "REFERENCE": str(data / "tasks" / "groceries_1" / "ground_truth" / "evaluation.py"),
        "OTHER_TASK": str(data / "tasks" / "travel_1" / "specs.json"),
        "DATA": str(data),
        "HOME": str(Path.home()),
    }
    return "".join(f"{name} = {value!r}\n" for name, value in known.items())


@contextlib.contextmanager
def serving(python: Path, root: Path, temporary: Path, *arguments: str) -> Iterator[Service]:
    """The server script in AppWorld's own Python, with its temporary files in `temporary`."""
    variables = {"APPWORLD_PATH": str(root), "TMPDIR": str(temporary), "PYTHONPATH": "", "OPENAI_API_KEY": SECRET}
    with running("appworld", *arguments, program=(python, SCRIPT), variables=variables) as service:
        yield service


def play(service: Service, instance_id: str, *codes: str, task_id: str = "groceries_1") -> list[str]:
    """Open an instance and run the codes; what each was answered."""
    assert service.create(instance_id, task_id).status_code == 200
    return [run(service, instance_id, code) for code in codes]


def run(service: Service, instance_id: str, code: str) -> str:
    """What the agent reads of one piece of code; empty where that was the last one."""
    answer = service.step(instance_id, fenced(code))
    assert answer.status_code == 200, answer.text
    return "".join(message["content"] for message in answer.json()["data"]["state"])


def score(service: Service, instance_id: str, *, sparse: bool) -> float:
    answer = service.post("evaluate", instance_id=instance_id, params={"sparse": sparse})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]
