"""Download a data set from a hub into a folder, and go on where an earlier download stopped.

    python scripts/download_dataset.py --target=openai/gsm8k --path=data/gsm8k

`--source hf` (the default) is huggingface.co, or the mirror that HF_ENDPOINT names; `mirror` insists on a mirror, by
HF_ENDPOINT or --endpoint; `modelscope` is modelscope.cn. Files that are there and whole are not fetched again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from astune.schema import AstuneError, TaskReaderError
from astune.task_reader.dataset_files import LocalFiles
from astune.task_reader.download import bytes_begun, fetch, is_there, only_writer
from astune.task_reader.hub import Hub, HuggingFaceHub, ModelScopeHub, RemoteFile
from astune.task_reader.rows import row_count, rows_of

FIRST_ROWS = 3
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parsed(arguments)
    try:
        with open_hub(asked.source, asked.endpoint) as hub:
            download(hub, asked.target, asked.path)
    except AstuneError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on where it stopped\n")
        return INTERRUPTED
    try:
        show_first_rows(asked.path)
    except TaskReaderError as error:
        print(f"\nno rows are shown: {error}")
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="the data set's id on the hub, as in openai/gsm8k")
    parser.add_argument("--path", required=True, type=Path, help="the folder to download into")
    parser.add_argument("--source", choices=("hf", "modelscope", "mirror"), default="hf")
    parser.add_argument("--endpoint", default="", help="the hub's address, in place of the source's own")
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
        begun = sum(bytes_begun(file, folder) for file in missing)
        wanted = sum(file.size for file in missing) - begun
        if missing:
            fetch_all(hub, missing, folder)
    print(f"{len(missing)} files fetched ({size(wanted)}), {len(files) - len(missing)} were there")


def show_state(file: RemoteFile, folder: Path) -> bool:
    """One line of the table; returns whether the file has to be fetched."""
    begun = bytes_begun(file, folder)
    there = is_there(file, folder)
    state = "complete" if there else f"{begun / file.size:.0%} there" if begun else "to fetch"
    print(f"  {state:<10} {size(file.size):>9}  {file.name}", flush=True)
    return not there


def fetch_all(hub: Hub, files: Sequence[RemoteFile], folder: Path) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), transient=True) as progress:
        bar = progress.add_task("", total=sum(file.size for file in files))
        whole = 0
        for file in files:
            progress.update(bar, description=file.name)
            fetch(file, folder, hub, lambda there, whole=whole: progress.update(bar, completed=whole + there))
            whole += file.size


def show_first_rows(folder: Path) -> None:
    """The first rows of the first split of every subset."""
    layout = LocalFiles(str(folder), folder).layout
    for subset, splits in layout.subsets.items():
        split, names = next(iter(splits.items()))
        counts = [row_count(folder / name) for name in names]
        n_rows = f", {sum(filter(None, counts)):,} rows" if None not in counts else ""
        print(f"\nsubset {subset} (splits {', '.join(splits)}), the first rows of {split}{n_rows}:")
        rows = itertools.islice(itertools.chain.from_iterable(rows_of(folder / name) for name in names), FIRST_ROWS)
        for number, row in enumerate(rows, start=1):
            for position, (field, value) in enumerate(row.items()):
                print(cut(f"  {number if position == 0 else '':<3} {field}: {value!r}"))


def cut(line: str) -> str:
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def size(n_bytes: int) -> str:
    """In decimal units, as hubs show sizes."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes} B"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started without it
    sys.exit(main())
