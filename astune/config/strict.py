"""Base class of all configuration sections."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator


class StrictModel(BaseModel):
    """Section model that refuses unknown keys, validates defaults, and describes fields by their docstrings."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        populate_by_name=True,
    )
    # Key that a string in place of the section sets; empty where a section is required.
    shorthand: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: Any) -> Any:
        return {cls.shorthand: value} if cls.shorthand and isinstance(value, str) else value


Section = TypeVar("Section", bound=StrictModel)


def changed(section: Section, **values: Any) -> Section:
    """Return a section with other values, which are not validated; a mapping changes a section within it.

    changed(config, rollout={"max_attempts": 1})   ->   the same, in which rollout.max_attempts is 1
    """
    sections = {
        name: changed(inner, **value)
        for name, value in values.items()
        if isinstance(inner := getattr(section, name), StrictModel) and isinstance(value, Mapping)
    }
    return section.model_copy(update=values | sections)


def known(value: str, names: tuple[str, ...], key: str) -> str:
    """Return the value if it is one of the names or a reference to a class, else raise ValueError."""
    if value in names or "->" in value:
        return value
    close = difflib.get_close_matches(value, names, n=1)
    raise ValueError(
        f"`{key}` is {value!r}, which is neither {', '.join(names)} nor a class as path/file.py->Class"
        + (f"; did you mean {close[0]}?" if close else "")
    )
