"""What all sections of the configuration have in common."""

from __future__ import annotations

import difflib
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class StrictModel(BaseModel):
    """Unknown keys are refused, defaults are checked, and a field's docstring is its description."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        populate_by_name=True,
    )
    # The key that a text in place of the whole section sets; empty where there has to be a section.
    shorthand: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: Any) -> Any:
        return {cls.shorthand: value} if cls.shorthand and isinstance(value, str) else value


def known(value: str, names: tuple[str, ...], key: str) -> str:
    """The value, where it is one of the names or a reference to a class. Raises ValueError elsewhere."""
    if value in names or "->" in value:
        return value
    close = difflib.get_close_matches(value, names, n=1)
    raise ValueError(
        f"`{key}` is {value!r}, which is neither {', '.join(names)} nor a class as path/file.py->Class"
        + (f"; did you mean {close[0]}?" if close else "")
    )
