"""Download a data set from a hub, resuming where an earlier download stopped, and show what is in it.

    python scripts/download_dataset.py --target=openai/gsm8k --path=data

writes `data/openai/gsm8k/main/train-00000-of-00001.parquet` and so on: each data set has its own folder below `--path`.
Afterwards an experiment can name it by its id or by its folder, and needs no network.

`--source hf` (the default) is huggingface.co, or the mirror in HF_ENDPOINT; `mirror` is a mirror in HF_ENDPOINT or
--endpoint, and nothing else; `modelscope` is modelscope.cn. Complete files are not downloaded again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from astune.schema import AstuneError, TaskReaderError
from astune.task_reader.dataset_files import LocalFiles
from astune.task_reader.download import bytes_begun, fetch, is_there, only_writer
from astune.task_reader.downloaded import folder_of, note_download
from astune.task_reader.hub import Hub, HuggingFaceHub, ModelScopeHub, RemoteFile
from astune.task_reader.layout import Layout
from astune.task_reader.rows import Row, counted_rows, rows_of

FIRST_ROWS = 3
MOST_COLUMNS = 6
LONGEST_VALUE = 300
"""Characters of one value that the table shows."""
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parsed(arguments)
    try:
        folder = folder_of(asked.target, asked.path)
        with open_hub(asked.source, asked.endpoint) as hub:
            download(hub, asked.target, folder)
        try:
            show_rows(folder)
        except TaskReaderError as error:
            print(f"\nno rows are shown: {error}")
        note_download(asked.target, folder)
    except AstuneError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command resumes where it stopped\n")
        return INTERRUPTED
    print(f"\nread it with task_reader.huggingface.dataset_path: {folder} (or {asked.target})")
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="id of the data set on the hub, such as openai/gsm8k; required")
    parser.add_argument(
        "--path", required=True, type=Path, help="folder for data sets; this one is written to PATH/TARGET; required"
    )
    parser.add_argument("--source", choices=("hf", "modelscope", "mirror"), default="hf", help="the hub (default hf)")
    parser.add_argument("--endpoint", default="", help="address of the hub; by default that of the source, see above")
    return parser.parse_args(arguments)


def open_hub(source: str, endpoint: str) -> Hub:
    """The hub that `--source` means.

    Raises:
        TaskReaderError: a mirror is asked for, and none is named.
    """
    if source == "modelscope":
        return ModelScopeHub(endpoint)
    if source == "mirror" and not (endpoint or os.environ.get(HuggingFaceHub.setting)):
        raise TaskReaderError("no mirror is named", hint="add --endpoint=https://..., or set HF_ENDPOINT")
    return HuggingFaceHub(endpoint)


def download(hub: Hub, dataset: str, folder: Path) -> None:
    """Show the table of files, then fetch those that are not whole."""
    files = hub.files(dataset)
    if not files:
        raise TaskReaderError(f"{dataset} has no files at {hub.endpoint}", hint="look at its page")
    with only_writer(folder):
        print(f"{dataset} at {hub.endpoint}, into {folder}")
        missing = [file for file in files if show_state(file, folder)]
        show_others(files, folder)
        begun = sum(bytes_begun(file, folder) for file in missing)
        wanted = sum(file.size for file in missing) - begun
        if missing:
            fetch_all(hub, missing, folder)
    print(f"{len(missing)} files fetched ({size(wanted)}), {len(files) - len(missing)} were there")


def show_state(file: RemoteFile, folder: Path) -> bool:
    """Print a line of the table; return whether the file has to be fetched."""
    begun = bytes_begun(file, folder)
    there = is_there(file, folder)
    state = "complete" if there else f"{begun / file.size:.0%} there" if begun else "to fetch"
    print(f"  {state:<10} {size(file.size):>9}  {file.name}", flush=True)
    return not there


def show_others(files: Sequence[RemoteFile], folder: Path) -> None:
    """A line for each file that the hub does not have, as one of an older revision; it stays, and would be read."""
    expected = {file.name for file in files} | {f"{file.name}.part" for file in files}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
        name = path.relative_to(folder).as_posix()
        if name not in expected:
            print(f"  {'not on hub':<10} {size(path.stat().st_size):>9}  {name}; delete it unless it belongs here")


def fetch_all(hub: Hub, files: Sequence[RemoteFile], folder: Path) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("", total=sum(file.size for file in files))
        whole = 0
        for file in files:
            progress.update(bar, description=file.name)
            fetch(file, folder, hub, lambda there, whole=whole: progress.update(bar, completed=whole + there))
            whole += file.size
        progress.update(bar, description="fetched")


def show_rows(folder: Path) -> None:
    """Print the number of rows of each split of each subset, and its first ones in a table."""
    layout = LocalFiles(str(folder), folder).layout
    show_counts(layout, folder)
    for subset, splits in layout.subsets.items():
        for split, names in splits.items():
            rows = itertools.chain.from_iterable(rows_of(folder / name) for name in names)
            show_table(f"{subset}, {split}: the first rows", list(itertools.islice(rows, FIRST_ROWS)))


def show_counts(layout: Layout, folder: Path) -> None:
    print()
    with Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rows]:,} rows")) as progress:
        for subset, splits in layout.subsets.items():
            for split, names in splits.items():
                bar = progress.add_task(f"subset {subset}, split {split}", total=len(names), rows=0)
                for n_files, name in enumerate(names, start=1):
                    counted = progress.tasks[bar].fields["rows"] + counted_rows(folder / name)
                    progress.update(bar, completed=n_files, rows=counted)


def show_table(title: str, rows: Sequence[Row]) -> None:
    fields = list(dict.fromkeys(field for row in rows for field in row))
    shown = fields[:MOST_COLUMNS]
    left_out = f" ({len(fields) - len(shown)} more fields)" if len(fields) > len(shown) else ""
    table = Table(title=f"{title}{left_out}", title_justify="left", show_lines=True)
    for field in shown:
        table.add_column(Text(field), overflow="fold")
    for row in rows:
        table.add_row(*(Text(shortened(row.get(field))) for field in shown))
    Console().print("", table)


def shortened(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def size(n_bytes: int) -> str:
    """Format a size in decimal units, as hubs do."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes} B"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started without it
    sys.exit(main())
