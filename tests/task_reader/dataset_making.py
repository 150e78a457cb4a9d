"""What the tests' data sets are made of."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CARD = """---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
---
# GSM8K
"""


def parquet_of(rows: Sequence[dict[str, Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    stream = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), stream, row_group_size=1000)
    return stream.getvalue()


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
