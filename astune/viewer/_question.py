"""Query parameters of a request, each validated by type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeVar, cast, get_args

from starlette.requests import Request

from astune.feedback.sessions import OpinionKind, SessionFilter, SessionOrder
from astune.runs import EpisodeFilter, EpisodeOrder, SortKey
from astune.runs.facets import TaskSort, Turned
from astune.schema import EpisodeStatus, Split
from astune.viewer._answers import Refusal
from astune.viewer._rows import Sought, TasksAsked

T = TypeVar("T", bound=str)
_PAGE_ROWS = 100
_MOST_ROWS = 1000
_INT64 = 2**63 - 1
_ORDERS: tuple[Literal["asc", "desc"], ...] = ("asc", "desc")


class Question:
    """An empty parameter is one that is not there."""

    def __init__(self, request: Request) -> None:
        self._given = request.query_params

    def text(self, name: str) -> str:
        value = self._given.get(name)
        if value is None:
            raise Refusal(400, f"the parameter {name} is missing")
        return value

    def texts(self, name: str) -> list[str]:
        return self._given.getlist(name)

    def optional(self, name: str) -> str | None:
        return self._given.get(name) or None

    def count(self, name: str, otherwise: int, most: int = _INT64) -> int:
        value = self.whole(name)
        if value is None:
            return otherwise
        if not 0 <= value <= most:
            raise Refusal(400, f"{name} must be between 0 and {most}, not {value}")
        return value

    def page(self) -> dict[str, int]:
        """Return which rows of a list are asked for."""
        return {"offset": self.count("offset", 0), "limit": self.count("limit", _PAGE_ROWS, _MOST_ROWS)}

    def whole(self, name: str) -> int | None:
        value = self.optional(name)
        try:
            number = None if value is None else int(value)
        except ValueError:
            raise Refusal(400, f"{name} must be a whole number, not {value!r}") from None
        if number is not None and abs(number) > _INT64:
            raise Refusal(400, f"{name} must be a whole number of at most 64 bits")
        return number

    def number(self, name: str) -> float | None:
        value = self.optional(name)
        try:
            number = None if value is None else float(value)
        except ValueError:
            number = math.nan
        if number is not None and math.isnan(number):
            raise Refusal(400, f"{name} must be a number, not {value!r}")
        return number

    def one_of(self, name: str, known: Sequence[T]) -> T | None:
        value = self.optional(name)
        if value is not None and value not in known:
            raise Refusal(400, f"{name} must be one of {', '.join(known)}, not {value!r}")
        return cast("T | None", value)


def filter_of(question: Question) -> EpisodeFilter:
    success = question.one_of("success", ("true", "false"))
    return EpisodeFilter(
        split=question.one_of("split", get_args(Split)),
        step=question.whole("step"),
        task=question.optional("task"),
        task_id=question.optional("task_id"),
        status=question.one_of("status", get_args(EpisodeStatus)),
        error_type=question.optional("error_type"),
        agent=question.optional("agent"),
        success=None if success is None else success == "true",
        min_reward=question.number("min_reward"),
        max_reward=question.number("max_reward"),
        min_tokens=question.whole("min_tokens"),
        max_tokens=question.whole("max_tokens"),
        min_branches=question.whole("min_branches"),
    )


def sessions_wanted(question: Question) -> SessionFilter:
    return SessionFilter(
        text=question.optional("text"),
        model=question.optional("model"),
        client=question.optional("client"),
        user=question.optional("user"),
        opinion=question.one_of("opinion", get_args(OpinionKind)),
        since=question.number("since"),
        until=question.number("until"),
    )


def session_order(question: Question) -> SessionOrder:
    order: SessionOrder | None = question.one_of("order", get_args(SessionOrder))
    return order or "newest"


def sought_in(question: Question) -> Sought:
    return Sought(question.optional("text"), question.optional("policy"))


def tasks_asked(question: Question) -> TasksAsked:
    by: TaskSort | None = question.one_of("by", get_args(TaskSort))
    turned: Turned | None = question.one_of("turned", get_args(Turned))
    return TasksAsked(by or "task", descending=question.one_of("order", _ORDERS) == "desc", turned=turned)


def order_of(question: Question) -> EpisodeOrder:
    by: SortKey | None = question.one_of("sort", get_args(SortKey))
    return EpisodeOrder(by or "seq", question.one_of("order", _ORDERS) == "desc")
