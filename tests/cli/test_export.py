"""`astune export`, where the model's files cannot be copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from astune.runs import RunDirectory

NAMES = ("tokenizer/one.json", "tokenizer/other.json")


def test_a_file_that_cannot_be_copied_is_named_alone_and_nothing_is_left(
    tmp_path: Path, astune: Callable[..., tuple[int, str, str]]
) -> None:
    with RunDirectory.create(tmp_path / "record", "x") as run:
        saved = run.checkpoints.save(1, model=lambda folder: (folder / "config.json").write_text("{}"), score=1.0)
    (saved.model / "tokenizer").mkdir()
    for name in NAMES:
        (saved.model / name).symlink_to(tmp_path / "gone")
    to = tmp_path / "to"
    status, _, err = astune("export", str(run.path), "--to", str(to))
    shown = "".join(err.split())  # without the ends of lines
    assert status == 1
    assert any(f"copying{saved.model / name}to{to.parent / '.to.partial' / name}:Nosuch" in shown for name in NAMES)
    assert "[(" not in shown
    assert shown.count("Nosuchfile") == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["record"]


def test_what_a_killed_export_left_is_no_part_of_the_next_one(
    tmp_path: Path, astune: Callable[..., tuple[int, str, str]]
) -> None:
    with RunDirectory.create(tmp_path / "record", "x") as run:
        run.checkpoints.save(1, model=lambda folder: (folder / "config.json").write_text("{}"), score=1.0)
    left = tmp_path / ".to.partial"
    left.mkdir()
    (left / "model-2.safetensors").touch()
    status, _, err = astune("export", str(run.path), "--to", str(tmp_path / "to"))
    assert status == 0, err
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["config.json"]
