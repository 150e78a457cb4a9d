"""Conversion of a row in another format to a task: one field is the query, and the whole row is metadata.

Its id is made from its content. A field that looks like an id stays in the metadata: published rows are numbered
separately in every split, or by topic.
"""

from __future__ import annotations

import json
import reprlib
from typing import Any

from astune.schema import Task, TaskReaderError, content_id


def task_of_raw_row(row: dict[str, Any], *, where: str, query_field: str | None, key: str) -> Task:
    """The row as a task. Raises TaskReaderError if that field is missing, empty or no text.

    Args:
        row: its fields.
        where: the row's place, for the error.
        query_field: the field that holds the query; None takes the whole row, as JSON.
        key: the configuration key that names this field, for the error.
    """
    if query_field is None:
        return Task(task_id=content_id(row), main_query=json.dumps(row, ensure_ascii=False, default=str), metadata=row)
    query = row.get(query_field)
    if not isinstance(query, str) or not query.strip():
        raise TaskReaderError(
            f"{where}: expected text in field {query_field!r}, found "
            + (
                f"{reprlib.repr(query)}; the row's fields are {fields_of(row)}"
                if query_field in row
                else f"only the fields {fields_of(row)}"
            ),
            hint=f"set {key} to the field that holds the query, or take the row out",
        )
    return Task(task_id=content_id(row), main_query=query, metadata=row)


def fields_of(row: dict[str, Any]) -> str:
    return ", ".join(sorted(map(str, row))) or "none"
