"""The rows of data files, and what is wrong with bad ones."""

from __future__ import annotations

import importlib
import io
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from dataset_making import parquet_of

from astune.schema import TaskReaderError
from astune.task_reader.rows import json_object, row_count, rows_of

ROWS = [{"question": "2+2?", "answer": "#### 4", "level": 1}, {"question": 'é, "ü"\n?', "answer": "", "level": None}]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def table_of(table: Any) -> bytes:
    from pyarrow import parquet

    stream = io.BytesIO()
    parquet.write_table(table, stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.parquet", parquet_of(ROWS)),
        ("t.jsonl", "\n".join(map(json.dumps, ROWS)) + "\n\n"),
        ("t.json", json.dumps(ROWS, indent=1)),
        ("lines.json", "\ufeff" + "\n".join(map(json.dumps, ROWS))),
    ],
)
def test_every_format_has_the_same_rows(tmp_path, name, content):
    assert list(rows_of(write(tmp_path / name, content))) == ROWS


def test_values_in_csv_are_text_as_they_stand(tmp_path):
    text = '\ufeffquestion,answer\r\n"a, ""b""\nc",007\r\n\r\n' + "x" * 200_000 + ",\r\n"
    first, second = rows_of(write(tmp_path / "t.csv", text))
    assert first == {"question": 'a, "b"\nc', "answer": "007"}
    assert (len(second["question"]), second["answer"]) == (200_000, "")


def test_blank_lines_before_the_header_of_csv_are_no_header(tmp_path):
    assert list(rows_of(write(tmp_path / "t.csv", "\n\r\na,b\n1,2\n"))) == [{"a": "1", "b": "2"}]
    with pytest.raises(TaskReaderError, match=r"t\.csv:3: 1 values, but 2 columns"):
        list(rows_of(write(tmp_path / "t.csv", "\na,b\n1\n")))


def test_values_of_parquet_that_json_has_not_are_text_or_numbers(tmp_path):
    row = {
        "answer": Decimal("1.50"),
        "small": Decimal("1E-9"),
        "day": date(2026, 1, 31),
        "at": time(9, 30),
        "since": datetime(2026, 1, 31, 9, 30, tzinfo=UTC),
        "inside": [{"price": Decimal("1000"), "name": "a"}],
        "took": timedelta(minutes=1, milliseconds=5),
        "image": {"bytes": b"\xff\x00", "path": "a.png"},
        "none": None,
    }
    assert list(rows_of(write(tmp_path / "t.parquet", parquet_of([row])))) == [
        {
            "answer": "1.50",
            "small": "0.000000001",
            "day": "2026-01-31",
            "at": "09:30:00",
            "since": "2026-01-31T09:30:00+00:00",
            "inside": [{"price": "1000", "name": "a"}],
            "took": 60.005,
            "image": {"bytes": {"base64": "/wA="}, "path": "a.png"},
            "none": None,
        }
    ]


def test_uuids_and_bytes_of_a_fixed_length_are_text(tmp_path: Path):
    import pyarrow

    own = UUID("11f57fce-80c7-4dce-a0b1-76d3bc4560bc")
    columns = {"key": pyarrow.array([own.bytes], pyarrow.uuid()), "mac": pyarrow.array([b"ab"], pyarrow.binary(2))}
    path = write(tmp_path / "t.parquet", table_of(pyarrow.table(columns)))
    assert list(rows_of(path)) == [{"key": str(own), "mac": {"base64": "YWI="}}]


@pytest.mark.parametrize(
    ("unit", "zone", "value"), [("ms", None, 10**18), ("us", "Mars/Base", 10**6)], ids=["far away", "unknown zone"]
)
def test_a_value_of_parquet_that_is_out_of_reach_is_named_by_file_and_column(
    unit: Any, zone: str | None, value: int, tmp_path: Path
):
    import pyarrow

    kind = pyarrow.timestamp(unit, zone)
    path = write(tmp_path / "t.parquet", table_of(pyarrow.table({"q": ["x"], "at": pyarrow.array([value], kind)})))
    with pytest.raises(TaskReaderError, match=r"t\.parquet: column 'at' holds timestamp.*save the column") as caught:
        list(rows_of(path))
    assert "download" not in str(caught.value)


def test_nanoseconds_of_parquet_are_read_or_named(tmp_path: Path):
    import pyarrow

    times = pyarrow.array([1_234_567_891], pyarrow.timestamp("ns"))
    path = write(tmp_path / "t.parquet", table_of(pyarrow.table({"at": times})))
    try:
        importlib.import_module("pandas")
    except ImportError:
        with pytest.raises(TaskReaderError, match=r"t\.parquet: column 'at' holds timestamp\[ns\]"):
            list(rows_of(path))
    else:
        assert list(rows_of(path)) == [{"at": "1970-01-01T00:00:01.234567891"}]


def test_two_columns_of_parquet_with_one_name_are_refused(tmp_path: Path):
    import pyarrow

    columns = [pyarrow.array(["a"]), pyarrow.array(["b"])]
    table = pyarrow.Table.from_arrays(columns, names=["question", "question"])
    with pytest.raises(TaskReaderError, match=r"t\.parquet: two columns have one name: question, question"):
        list(rows_of(write(tmp_path / "t.parquet", table_of(table))))


def test_a_large_parquet_file_is_read_as_it_goes(tmp_path):
    import pyarrow

    path = write(tmp_path / "t.parquet", parquet_of([{"text": f"{n} " * 400} for n in range(20_000)]))
    size = 20_000 * 400 * 3
    before = pyarrow.default_memory_pool().max_memory()
    assert len(list(islice(rows_of(path), 10))) == 10
    assert pyarrow.default_memory_pool().max_memory() - before < size
    assert row_count(path) == 20_000


def test_only_parquet_knows_how_many_rows_it_has(tmp_path):
    assert row_count(write(tmp_path / "t.parquet", parquet_of(ROWS))) == 2
    assert row_count(write(tmp_path / "t.jsonl", "{}")) is None


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("t.parquet", "no parquet", r"t\.parquet cannot be read as parquet: .*download it again"),
        ("t.parquet", parquet_of(ROWS)[:-50], r"t\.parquet cannot be read as parquet"),
        ("t.jsonl", '{"a": 1}\n{"a"', r"t\.jsonl:2: expected one JSON object, and this is not JSON"),
        ("t.jsonl", b'{"a": "\xff"}', r"t\.jsonl:1: not UTF-8"),
        ("t.json", '[{"a": 1}, 2]', r"t\.json: element 2 of the list is int, expected an object"),
        ("t.json", '[{"a": 1}', r"t\.json is not JSON"),
        ("t.json", '{\n "train": []\n}', r"t\.json:1: expected one JSON object"),
        ("t.csv", "a,b\n1,2\n1,2,3\n", r"t\.csv:3: 3 values, but 2 columns \(a, b\).*double quotes"),
        ("t.csv", "a,a\n1,2\n", r"t\.csv:1: two columns have one name: a, a"),
        ("t.csv", 'a,b\n"x"y,2\n', r"t\.csv:2: .*double quotes"),
        ("t.csv", b"a,b\n\xff,2\n", r"t\.csv: not UTF-8"),
    ],
)
def test_what_is_no_row_is_named_by_file_and_line(tmp_path, name, content, complaint):
    with pytest.raises(TaskReaderError, match=complaint):
        list(rows_of(write(tmp_path / name, content)))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "t.jsonl").mkdir()
    with pytest.raises(TaskReaderError, match=r"t\.jsonl cannot be read: Is a directory"):
        list(rows_of(tmp_path / "t.jsonl"))


def test_without_pyarrow_the_package_is_named(tmp_path, monkeypatch):
    real = importlib.import_module

    def import_module(name: str) -> object:
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(name=name)
        return real(name)

    path = write(tmp_path / "t.parquet", parquet_of(ROWS))
    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(TaskReaderError, match=r"needs pyarrow, which is not installed; pip install pyarrow"):
        list(rows_of(path))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"answer": NaN}', "NaN is not a JSON number"),
        ('{"a": {"b": 1, "b": 2}}', "'b' stands twice"),
        ('{"a": "\\ud800"}', "half a surrogate pair"),
        ('{"a": ' + "[" * 100_000 + "}", "nested deeper than"),
        ('{"answer": [1e999]}', "1e999 is beyond the largest number"),
    ],
)
def test_json_that_means_nothing_certain_is_refused_with_its_place(line: str, says: str):
    with pytest.raises(TaskReaderError, match=says) as caught:
        json_object(line.encode(), "tasks.jsonl, line 3")
    assert str(caught.value).startswith("tasks.jsonl, line 3: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[{"answer": NaN}]', "NaN is not a JSON number"),
        ('[{"answer": 1e999}]', "1e999 is beyond the largest number"),
        ('[{"a": 1, "a": 2}]', "'a' stands twice"),
        ("[" * 100_000, "nested deeper than"),
        ('[{"a": 1}, {"a": "a\\ud83d"}]', r"t\.json: element 2 of the list: a text holds half a surrogate pair"),
    ],
)
def test_a_list_of_rows_is_as_strict_as_a_line(tmp_path: Path, text: str, says: str):
    with pytest.raises(TaskReaderError, match=says):
        list(rows_of(write(tmp_path / "t.json", text)))


def test_a_whole_surrogate_pair_is_a_character():
    assert json_object(b'{"a": "\\ud83d\\ude42"}', "line 1") == {"a": "\U0001f642"}
