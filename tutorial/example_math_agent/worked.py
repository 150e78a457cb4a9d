r"""GSM8K's own solutions as conversations of the math agent, which `astune sft` learns.

    A baker fills 4 trays with 6 rolls each and sells 15 rolls.     first = 4 * 6
    He baked 4*6=<<4*6=24>>24 rolls.                            ->  print(first - 15)
    So 24-15=<<24-15=9>>9 are left.
    #### 9

The program is what the agent is shown to run, and what it prints is the answer. Everything before the question is asked
of the agent itself: its instructions, its tools and its solved examples.
"""

from __future__ import annotations

import ast
import asyncio
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from agentscope.formatter import DashScopeChatFormatter
from agentscope.model import ChatModelBase
from pydantic import ValidationError

from astune import AstuneConfig, Message, Task, TaskReaderHuggingFace, after_marker
from tutorial.example_math_agent.math_agent import ExampleMathLearn, FinalResult, solved

_CALCULATION = re.compile(r"<<(.*?)=.*?>>")
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class WorkedRows(TaskReaderHuggingFace):
    """The rows with one or two calculations, of which the last uses the first and gives the answer.

    Held-out rows are of the same kind. The other ones are left out and counted. A training row demonstrates its
    solution with `metadata.messages` and `metadata.tools`; reinforcement learning reads neither.
    """

    def training_tasks(self) -> list[Task]:
        worked = self._worked(super().training_tasks(), "training")
        with ThreadPoolExecutor(max_workers=1) as other_thread:  # this one may have an event loop
            return other_thread.submit(asyncio.run, _demonstrated(worked)).result()

    def validation_tasks(self) -> list[Task]:
        return [task for task, _ in self._worked(super().validation_tasks(), "held-out")]

    def _worked(self, tasks: Sequence[Task], split: str) -> list[tuple[Task, Program]]:
        worked: list[tuple[Task, Program]] = []
        left_out = Counter[str]()
        for task in tasks:
            try:
                worked.append((task, program_of(task.metadata["answer"])))
            except NotWorked as reason:
                left_out[str(reason)] += 1
        reasons = ", ".join(f"{count:,} with {reason}" for reason, count in left_out.most_common())
        self.tell(f"{len(worked):,} of {len(tasks):,} {split} rows; left out: {reasons or 'none'}")
        return worked


class Program(NamedTuple):
    """A solution as Python code, and what it prints."""

    code: str
    printed: str


class NotWorked(ValueError):
    """A row whose solution is no such program; the message says what it has instead."""


def program_of(answer: str) -> Program:
    """The calculations of a reference answer as a program.

    Raises:
        NotWorked: they are not one or two, of which the last gives the answer from the result of the first.
    """
    texts = _CALCULATION.findall(answer)
    if len(texts) not in (1, 2):
        raise NotWorked("no calculation, or more than two")
    try:
        *before, last = (_parsed(text) for text in texts)
        code, values = "", dict[str, float]()
        for calculation in before:
            code = f"first = {ast.unparse(calculation)}\n"
            values["first"] = _value(calculation, {})
            last = _Named(values).visit(last)
        printed = str(_value(last, values))
        reference = Fraction(after_marker(answer).replace(",", ""))
    except (SyntaxError, ValueError, ArithmeticError):
        raise NotWorked("a calculation or an answer that cannot be read") from None
    if before and "first" not in ast.unparse(last):
        raise NotWorked("a last calculation without the first one's result")
    if Fraction(printed) != reference:
        raise NotWorked("a last calculation that does not give the answer")
    try:
        FinalResult(result=rf"\boxed{{{printed}}}")
    except ValidationError:
        raise NotWorked("a result that is no answer of the agent") from None
    return Program(f"{code}print({ast.unparse(last)})", printed)


def _parsed(text: str) -> ast.expr:
    """Read a calculation.

    Raises:
        SyntaxError, ValueError: it is none of two numbers at least.
    """
    calculation = ast.parse(text.strip(), mode="eval").body
    if not isinstance(calculation, ast.BinOp):
        raise ValueError(text)
    return calculation


class _Named(ast.NodeTransformer):
    """Replaces numbers by the names of the results that they are."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._names: dict[object, str] = {value: name for name, value in values.items()}

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Name(self._names[node.value]) if node.value in self._names else node


def _value(calculation: ast.expr, values: Mapping[str, float]) -> float:
    """Compute what Python computes.

    Raises:
        ValueError: it is more than numbers, names, `+`, `-`, `*`, `/` and parentheses.
    """
    match calculation:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
    raise ValueError(ast.unparse(calculation))


async def _demonstrated(worked: Sequence[tuple[Task, Program]]) -> list[Task]:
    """The tasks, each with the agent's conversation that solves it."""
    opening, tools = await asked_by_agent("")
    read = [{**message, "weight": 0} if message["role"] == "assistant" else message for message in opening[:-1]]
    return [
        replace(task, metadata={**task.metadata, "messages": [*read, *await _solution(task, program)], "tools": tools})
        for task, program in worked
    ]


async def _solution(task: Task, program: Program) -> list[Message]:
    """The question with the calls that solve it; the last one is the answer."""
    messages = await DashScopeChatFormatter().format(solved(task.task_id, task.main_query, *program))
    return messages[:-2]  # without its result and the closing sentence, for which the agent drops its tools


async def asked_by_agent(question: str) -> tuple[list[Message], list[dict[str, Any]]]:
    """The messages and the tools with which the agent first asks its model about a question."""
    model: Any = _Listener()
    try:
        await ExampleMathLearn(AstuneConfig()).agentscope_execute(
            [{"role": "user", "content": question}], model, AstuneConfig()
        )
    except _Asked as asked:
        return asked.messages, asked.tools
    raise AssertionError("the agent ended without asking its model")


class _Asked(Exception):
    """The question to a listener."""

    def __init__(self, messages: list[Message], tools: list[dict[str, Any]]) -> None:
        super().__init__("asked")
        self.messages = messages
        self.tools = tools


class _Listener(ChatModelBase):
    """A model that answers nothing: it raises what it was asked."""

    def __init__(self) -> None:
        super().__init__("listener", stream=False)

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]], **_: Any) -> Any:
        raise _Asked(messages, tools)
