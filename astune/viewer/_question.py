"""Query parameters of a request, each validated by the type of the value that it stands for."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from starlette.requests import Request

from astune.feedback.sessions import SessionOrder
from astune.runs import EpisodeOrder, SortKey
from astune.runs.facets import TaskSort, Turned
from astune.viewer._answers import Refusal
from astune.viewer._rows import TasksAsked

T = TypeVar("T")
_PAGE_ROWS = 100
_MOST_ROWS = 1000
_INT64 = 2**63 - 1


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

    def count(self, name: str, otherwise: int, most: int = _INT64) -> int:
        value = self._value(name, int)
        if value is None:
            return otherwise
        if not 0 <= value <= most:
            raise Refusal(400, f"{name} must be between 0 and {most}, not {value}")
        return value

    def page(self) -> dict[str, int]:
        """Return which rows of a list are asked for."""
        return {"offset": self.count("offset", 0), "limit": self.count("limit", _PAGE_ROWS, _MOST_ROWS)}

    def conditions(self, form: type[T]) -> T:
        """Make a filter of the parameters that have the names of its fields."""
        kinds = {name: get_args(kind)[0] for name, kind in get_type_hints(form).items()}
        return form(**{name: self._value(name, kind) for name, kind in kinds.items()})

    def episode_order(self) -> EpisodeOrder:
        return EpisodeOrder(self._value("sort", SortKey) or "seq", self._is_descending())

    def session_order(self) -> SessionOrder:
        return self._value("order", SessionOrder) or "newest"

    def tasks(self) -> TasksAsked:
        by = self._value("by", TaskSort) or "task"
        return TasksAsked(by, descending=self._is_descending(), turned=self._value("turned", Turned))

    def _is_descending(self) -> bool:
        return self._value("order", Literal["asc", "desc"]) == "desc"

    def _value(self, name: str, kind: Any) -> Any:
        """Return a parameter as a value of this type; None if it is not there, or no text can be one."""
        text = self._given.get(name) or None
        if text is None or kind is str:
            return text
        if kind is int or kind is float:
            return _number(name, text, kind)
        if kind is bool:
            return _one_of(name, text, ("true", "false")) == "true"
        return _one_of(name, text, get_args(kind)) if get_origin(kind) is Literal else None


def _number(name: str, text: str, kind: type[int] | type[float]) -> float:
    what, most = ("a whole number of at most 64 bits", _INT64) if kind is int else ("a number", math.inf)
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not -most <= number <= most:
        raise Refusal(400, f"{name} must be {what}, not {text!r}")
    return number


def _one_of(name: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise Refusal(400, f"{name} must be one of {', '.join(known)}, not {text!r}")
    return text
