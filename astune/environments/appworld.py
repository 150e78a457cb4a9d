"""AppWorld: an agent acts for a person on nine apps (mail, payments, music, ...) by writing Python.

It needs AppWorld's own Python, so a service hosts it: `astune --with-appworld`, which starts
`appworld_server.py`. Engine, tasks and tests are AppWorld's; this file only translates. One
message is one piece of code:

    a block between ```python and ```    is run, and what it printed is the answer; of several blocks, the first. One
                                         without a language is Python, one of another language is prose
    no block                             nothing is run, and the answer says what is expected
    `apis.supervisor.complete_task()`    in the code ends the episode; so does code that ends or hangs its world

Variables stay from one piece to the next. The sparse evaluation is 1 if all of the task's tests pass and else 0, the
dense one the part of them that does; some pass for an agent that does nothing.
"""

from __future__ import annotations

import datetime
import re
from typing import Any, ClassVar

from astune.env_service.base import Environment, EnvState, EnvStep, opening, text_of
from astune.environments import _appworld_engine as engine
from astune.processes.forked import Ended, Forked, Raised
from astune.schema import EnvError, Message, Task

OPENING_S = 60.0
"""Seconds that a world may take to open; a prepared process takes a fraction of one."""
STEP_S = engine.CODE_S + 20.0
"""Seconds after which a world is ended whose code AppWorld could not stop."""
EVALUATION_S = 120.0

_BLOCK = re.compile(
    r"^(?:[ \t]*`{3,}[ \t]*|[^`\n]*`{3,}(?=\w+\s*$))"  # on a line of its own, or after text and before a language
    r"([^\s`]*)[^`\n]*\n"
    r"(.*?)(?:`{3,}[ \t\r]*$|\Z)",
    re.M | re.S,
)
"""Pattern of a code block with its language, if any. Blocks are matched in sequence, so no closing fence is an
opening."""
_PYTHON = ("", "python", "python3", "py")

SYSTEM = """You do what a person asks for, on their own apps, by writing Python.

- In each turn say in a sentence what you do next, then write one block of code between ```python and ```. It is run, \
and you read what it printed. Variables stay until the end.
- An app's functions are called as apis.APP.NAME(...). Look them up and do not guess:
  apis.api_docs.show_app_descriptions() lists the apps,
  apis.api_docs.show_api_descriptions(app_name=...) the functions of one,
  apis.api_docs.show_api_doc(app_name=..., api_name=...) says what one takes and returns.
- apis.supervisor knows the person: passwords, addresses, payment cards. Most apps want the access_token of a login \
with the person's e-mail address (in the app phone: the phone number) and the password of that app.
- Lists come in pages: ask for the next page_index until a page is empty. Friends and family are contacts in the app \
phone.
- Nobody answers questions: decide for yourself, and change nothing that was not asked for.
- At the end call apis.supervisor.complete_task(), with answer=... only where the request asks for something: the bare \
number, name or date."""
REQUEST = """I am {first_name} {last_name}, my e-mail address is {email} and my phone number is {phone_number}.
It is {now}. My request:

{instruction}"""
NO_CODE = "There is no code in your answer. Write one block of Python, which begins with ```python and ends with ```."
ONE_BLOCK = "Only the first block of your answer was run."


class AppWorldEnvironment(Environment):
    forks: ClassVar[bool] = True
    variables: ClassVar[frozenset[str] | None] = engine.VARIABLES

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        settings = engine.prepare()
        self._specification = engine.specification(task.task_id)
        self._world = engine.World(task.task_id, settings)
        self._process: Forked | None = None
        self._ended = ""
        self._steps = 0
        self._tests: dict[str, list[str]] | None = None

    def get_init_state(self) -> EnvState:
        self._world.make_root()
        name = f"the world of task {self.task.task_id}"
        self._process = Forked(self._world, name=name)
        try:
            self._process.ask("open", timeout_s=OPENING_S)
        except Ended as cause:
            raise EnvError(f"{name} {cause} before it was open") from cause
        return EnvState(opening(SYSTEM, _request(self._specification)))

    def step(self, action: Message) -> EnvStep:
        if self._process is None:
            raise EnvError("the world is not open")
        blocks = code_in(text_of(action))
        if not blocks:
            return EnvStep([{"role": "user", "content": NO_CODE}], reward=0.0, is_terminated=False)
        self._steps += 1
        try:
            output, is_completed = _ran(self._process.ask("run", timeout_s=STEP_S, code=blocks[0]))
        except Ended as how:
            return self._end_of_world(f"the code's world {how}")
        except Raised as refused:  # the agent's code can say so too
            return self._end_of_world(refused.message)
        if is_completed:
            return EnvStep([], reward=0.0, is_terminated=True, info={"output": output})
        shown = f"Output:\n```\n{output.rstrip()}\n```"
        content = f"{shown}\n{ONE_BLOCK}" if len(blocks) > 1 else shown
        return EnvStep([{"role": "user", "content": content}], reward=0.0, is_terminated=False)

    def evaluate(self, sparse: bool = True) -> float:
        self._world.show_reference()
        name = f"the evaluation of task {self.task.task_id}"
        evaluation = Forked(self._world, name=name)
        try:
            tests: dict[str, list[str]] = evaluation.ask("evaluate", timeout_s=EVALUATION_S)
        except Ended as cause:
            raise EnvError(f"{name} {cause}") from cause
        finally:
            evaluation.end()
        self._tests = tests
        passed, failed = len(tests["passed"]), len(tests["failed"])
        if sparse:
            return float(passed > 0 and not failed)
        return passed / max(1, passed + failed)

    def get_info(self) -> str:
        lines = [f"{self._steps} pieces of code were run", *([self._ended] if self._ended else [])]
        for verdict, requirements in (self._tests or {}).items():
            lines += [f"{verdict}: {requirement}" for requirement in requirements]
        return "\n".join(lines)

    def close(self) -> None:
        if self._process is not None:
            self._process.end()
            self._world.remove_root()

    def _end_of_world(self, reason: str) -> EnvStep:
        if self._process is not None:
            self._process.end()
        self._ended = reason
        return EnvStep([], reward=0.0, is_terminated=True, info={"ended": reason})

    @classmethod
    def prepare(cls) -> None:
        engine.prepare()

    @classmethod
    def get_query_list(cls, split: str, params: dict[str, Any]) -> list[str]:
        return engine.task_ids(split)


def code_in(text: str) -> list[str]:
    """The blocks of Python in an answer; the last one may lack its end."""
    return [code for language, code in _BLOCK.findall(text) if language.lower() in _PYTHON]


def _ran(answer: Any) -> tuple[str, bool]:
    """The output of code, and whether it completed the task. Raises Ended if that is not what the answer holds."""
    if isinstance(answer, dict):
        output, is_completed = answer.get("output"), answer.get("is_completed")
        if isinstance(output, str) and isinstance(is_completed, bool):
            return output, is_completed
    raise Ended("gave another answer than the engine's")


def _request(specification: dict[str, Any]) -> str:
    now = datetime.datetime.fromisoformat(specification["datetime"])
    person = specification.get("supervisor") or specification["main_user"]
    return REQUEST.format(
        instruction=specification["instruction"], now=f"{now:%A}, {now.day} {now:%B %Y, %H:%M}", **person
    )
