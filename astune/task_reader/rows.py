"""The rows of a data file, one at a time: parquet, JSON lines, JSON and CSV. The meaning of a row is not interpreted.

Values are what the file says: JSON's types, and text in CSV, where `007` stays `007`. Parquet's decimals, dates, times
and UUIDs are text too, `1.50` and `2026-01-31`, since JSON has no such types; a duration is its seconds, and bytes are
`{"base64": text}`. Only a JSON list is read as a whole, for there is no other way to read one.
"""

from __future__ import annotations

import csv
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from astune.schema import TaskReaderError, imported
from astune.schema.plain_json import strict_json

Row = dict[str, Any]
_BATCH = 1024
"""Rows of a parquet file that are turned into Python objects together."""
_HAS_NO_JSON = re.compile(r"decimal|timestamp|date\d|time\d|map<|duration|binary|uuid")
"""Arrow types, also inside of others, whose Python values are not those of JSON."""
_LONGEST_FIELD = 2**31 - 1
"""Characters of one CSV field; Python's default of 131,072 is less than some documents."""


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a file whose suffix is one of `FORMATS`, in file order.

    Raises:
        TaskReaderError: it cannot be read, or something in it is no row; names the file and the line.
    """
    try:
        yield from FORMATS[path.suffix](path)
    except UnicodeDecodeError as cause:
        raise TaskReaderError(f"{path}: not UTF-8 (byte {cause.start})", hint="save the file as UTF-8") from cause
    except OSError as cause:
        raise TaskReaderError(f"{path} cannot be read: {cause.strerror or cause}", hint="check the file") from cause


def row_count(path: Path) -> int | None:
    """Number of rows in a parquet file's metadata; None for formats that have to be read to know."""
    if path.suffix != ".parquet":
        return None
    with _open_parquet(path) as file:
        return file.metadata.num_rows


def counted_rows(path: Path) -> int:
    """Number of rows in a file; all formats but parquet are read from end to end for it."""
    declared = row_count(path)
    return sum(1 for _ in rows_of(path)) if declared is None else declared


def json_object(line: bytes, where: str) -> Row:
    """A line of JSON that has to be an object.

    Raises:
        TaskReaderError: it is not UTF-8, no JSON, or no object; begins with `where`.
    """
    try:
        row = strict_json(line.decode("utf-8-sig"), _with_single_keys)
    except UnicodeDecodeError as cause:
        raise TaskReaderError(f"{where}: not UTF-8 (byte {cause.start})", hint="save the file as UTF-8") from cause
    except ValueError as cause:
        raise TaskReaderError(
            f"{where}: expected one JSON object, and this is not JSON: {cause}",
            hint="write null in its place"
            if "not a JSON number" in str(cause)
            else "write each task on one line, without commas between lines",
        ) from cause
    if not isinstance(row, dict):
        raise TaskReaderError(
            f"{where}: expected one JSON object, found {type(row).__name__}",
            hint="write one object a line rather than one list",
        )
    if b"\\ud" in line.lower():
        _require_whole_characters(row, where)
    return row


def _require_whole_characters(row: Row, where: str) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as cause:
        raise TaskReaderError(f"{where}: a text holds half a surrogate pair", hint="write whole characters") from cause


def _with_single_keys(pairs: Sequence[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in row if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return row


def _require_own_names(names: Sequence[str], where: str) -> None:
    if len(set(names)) < len(names):
        raise TaskReaderError(f"{where}: two columns have one name: {', '.join(names)}", hint="give each its own")


def _parquet_rows(path: Path) -> Iterator[Row]:
    arrow_error = _pyarrow("pyarrow").ArrowException
    with _open_parquet(path) as file:
        names = file.schema_arrow.names
        _require_own_names(names, str(path))
        try:
            for batch in file.iter_batches(batch_size=_BATCH):
                columns = [_values(batch.column(name), f"{path}: column {name!r}") for name in names]
                for values in zip(*columns, strict=True):
                    yield dict(zip(names, values, strict=True))
        except arrow_error as cause:
            raise _broken_parquet(path, cause) from cause


def _values(column: Any, where: str) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
        return [_plain(value) for value in values] if _HAS_NO_JSON.search(str(column.type)) else values
    except (_pyarrow("pyarrow").ArrowException, ValueError, OverflowError) as cause:
        raise TaskReaderError(
            f"{where} holds {column.type} values that cannot be read: {' '.join(str(cause).split())}",
            hint="save the column as text, or leave it out",
        ) from cause


def _plain(value: Any) -> Any:
    """The value with types that JSON has, which loses nothing. Bytes are no text, so that they are no question."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):  # a tuple is a map's entry
        return [_plain(each) for each in value]
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, UUID):
        return str(value)
    return value.isoformat() if isinstance(value, date | time) else value


def _open_parquet(path: Path) -> Any:
    arrow_error = _pyarrow("pyarrow").ArrowException
    try:
        return _pyarrow("pyarrow.parquet").ParquetFile(path)
    except arrow_error as cause:
        raise _broken_parquet(path, cause) from cause


def _broken_parquet(path: Path, cause: Exception) -> TaskReaderError:
    return TaskReaderError(
        f"{path} cannot be read as parquet: {' '.join(str(cause).split())}",
        hint="it may have been cut off: delete it and download it again",
    )


def _pyarrow(module: str) -> Any:
    return imported(module, needed_by="reading parquet files", error=TaskReaderError, hint="pip install pyarrow")


def _json_line_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield json_object(line, f"{path}:{number}")


def _json_rows(path: Path) -> Iterator[Row]:
    """A list of objects; files named `.json` often hold JSON lines as well."""
    with path.open(encoding="utf-8-sig") as stream:
        while (first := stream.read(1)).isspace():
            pass
        if first != "[":
            yield from _json_line_rows(path)
            return
        stream.seek(0)
        text = stream.read()
        try:
            rows = strict_json(text, _with_single_keys)
        except ValueError as cause:
            raise TaskReaderError(f"{path} is not JSON: {cause}", hint="fix it, or use JSON lines") from cause
    has_surrogates = "\\ud" in text.lower()
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise TaskReaderError(
                f"{path}: element {number} of the list is {type(row).__name__}, expected an object",
                hint='a row is {"field": value, ...}',
            )
        if has_surrogates:
            _require_whole_characters(row, f"{path}: element {number} of the list")
        yield row


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        lines = csv.reader(stream, strict=True)
        try:
            names = next((values for values in lines if values), [])
            _require_own_names(names, f"{path}:{lines.line_num}")
            for values in lines:
                if values and len(values) != len(names):
                    raise TaskReaderError(
                        f"{path}:{lines.line_num}: {len(values)} values, but {len(names)} columns ({', '.join(names)})",
                        hint="put values that contain commas into double quotes",
                    )
                if values:
                    yield dict(zip(names, values, strict=True))
        except csv.Error as cause:
            raise TaskReaderError(
                f"{path}:{lines.line_num}: {cause}", hint="expected commas between values and double quotes around text"
            ) from cause


FORMATS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".parquet": _parquet_rows,
    ".jsonl": _json_line_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
}
"""Formats by suffix.  Where a split is there in several formats, the first of these is read."""
