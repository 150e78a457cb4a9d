"""Executable checkers: Python that says whether an answer is right, written from the question alone and run in the
sandbox.

A checker is trusted only once tested: several are written without seeing the answer, and most of them have to accept
the task's answer and refuse others.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from astune.config.sandbox import SandboxConfig
from astune.data_generator.draft import Draft
from astune.data_generator.filters import answerable
from astune.data_generator.solving import Solver, plainly_same
from astune.helper_model import Form, HelperModel, data
from astune.sandbox import shared_sandbox
from astune.schema import gathered
from astune.scoring.math_answer import is_number

_TIMEOUT_S = 5.0
_REFUSED = ("", "I do not know.")


class _Checker(Form):
    computable: bool
    source: str


@dataclass
class Checked:
    """Most of several checkers accept the answer and refuse wrong ones; what cannot be computed is solved again.

    Args:
        others: answers of other tasks, which have to be refused unless they are the same.
    """

    model: HelperModel
    solver: Solver
    sandbox: SandboxConfig
    tries: int
    others: Sequence[str] = ()

    async def __call__(self, draft: Draft) -> Draft | str:
        instruction = self.model.prompts.get("data_checker")
        asked = data(question=draft.question)
        written = await gathered(
            *(self.model.ask_json(instruction, asked, _Checker, number=number) for number in range(self.tries))
        )
        sources = [each.source for each in written if each.computable and each.source.strip()]
        enough = self.solver.majority()
        if len(sources) < enough:
            return await answerable(draft, self.solver)
        wrong = wrong_answers(draft.answer, self.others)
        answers = [draft.answer, *wrong]
        found = await gathered(*(judged(source, answers, self.sandbox) for source in sources))
        ran = [(source, says) for source, says in zip(sources, found, strict=True) if says is not None]
        if len(ran) < enough:
            return "its checkers do not run"
        if sum(says[0] for _, says in ran) < enough:
            return "its checkers refuse the answer"
        good = [source for source, says in ran if says[0] and not any(says[1:])]
        if len(good) < enough:
            return "its checkers accept wrong answers"
        return replace(draft, checker=good[0])


def wrong_answers(answer: str, others: Sequence[str]) -> list[str]:
    """Answers that are not this one: nothing, other numbers, and the answers to other tasks."""
    wrong = list(_REFUSED)
    if is_number(answer) and answer.lstrip("-").isdigit():
        value = int(answer)
        wrong += [str(value + 1), str(value - 1), str(value * 10 + 7), str(-value) if value else "1"]
    wrong += [each for each in others if not plainly_same(each, answer)][:3]
    return [each for each in wrong if not plainly_same(each, answer)]


async def judged(source: str, answers: Sequence[str], sandbox: SandboxConfig) -> list[bool] | None:
    """Run the checker on each answer; None if the checker does not run. A checker that raises on an answer refuses it.
    Raises SandboxError if the sandbox itself failed."""
    mark = secrets.token_hex(16)
    program = f"{source}\n\n{_HARNESS.format(answers=json.dumps(list(answers)), mark=mark)}"
    running = await shared_sandbox(sandbox)
    result = await running.run(program, timeout_s=_TIMEOUT_S, name="a checker")
    [*marked] = [line for line in result.stdout.splitlines() if line.startswith(mark)]
    if result.returncode != 0 or len(marked) != 1:
        return None
    verdicts = [character == "1" for character in marked[0][len(mark) :]]
    return verdicts if len(verdicts) == len(answers) else None


_HARNESS = """
import json as _json
def _says(answer):
    try:
        return "1" if check(answer) is True else "0"
    except Exception:
        return "0"
check
print("{mark}" + "".join(_says(answer) for answer in _json.loads({answers!r})))
"""
