"""A run's vocabulary: written once, read without any tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from astune.runs import RunDirectory
from astune.schema import RunStoreError, Vocabulary

PIECES = [b"<|end|>", b" the", "漢".encode(), b"\xe6\xbc", b"\xa2", b"", b'"\\\n', b"\x00"]


def test_every_token_is_read_back_byte_for_byte(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "demo") as run:
        assert run.vocabulary() is None
        run.save_vocabulary(Vocabulary(PIECES, frozenset([0])))
        path = run.path
    found = RunDirectory.open(path).vocabulary()
    assert found == Vocabulary(PIECES, frozenset([0]))
    assert found.text([1, 3, 4, 0]) == " the漢<|end|>"
    assert found.text([3]) == "\ufffd"
    assert (found.piece(99), found.piece(-1)) == (b"", b"")


def test_ids_that_are_characters_need_no_list(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "demo") as run:
        run.save_vocabulary(Vocabulary(None))
        found = run.vocabulary()
    assert found is not None
    assert found.text([ord("漢"), 10, ord("🙂")]) == "漢\n🙂"
    assert (found.piece(0x110000), found.piece(-1)) == (b"", b"")


@pytest.mark.parametrize("content", [b"", b"no zstd", zstandard.compress(b"[]"), zstandard.compress(b'{"format": 1}')])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    with RunDirectory.create(tmp_path, "demo") as run:
        run.vocabulary_path.write_bytes(content)
        with pytest.raises(RunStoreError, match=r"vocabulary.json.zst is damaged"):
            run.vocabulary()
        run.vocabulary_path.write_bytes(zstandard.compress(b'{"format": 7}'))
        with pytest.raises(RunStoreError, match=r"has format 7.*upgrade"):
            run.vocabulary()


def test_only_the_writer_of_a_run_writes_it(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "demo") as run:
        path = run.path
    with pytest.raises(RunStoreError, match="reading only"):
        RunDirectory.open(path).save_vocabulary(Vocabulary(PIECES))
