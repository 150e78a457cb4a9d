"""`astune export`, where the model's files cannot be copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from astune.cli._past_runs import export_model
from astune.runs import RunDirectory
from astune.schema import RunStoreError


def test_a_file_that_cannot_be_copied_is_named_alone_and_nothing_is_left(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "record", "x") as run:
        saved = run.checkpoints.save(1, model=lambda folder: (folder / "config.json").write_text("{}"), score=1.0)
    for name in ("one.json", "other.json"):
        (saved.model / name).symlink_to(tmp_path / "gone")
    to = tmp_path / "to"
    with pytest.raises(RunStoreError, match=f"copying {saved.model} to {to}: \\[Errno 2\\] No such file") as refused:
        export_model(str(run.path), to)
    assert "[(" not in refused.value.message
    assert refused.value.message.count("No such file") == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["record"]
