"""Which files hold which split of which subset: by the card, and by their names."""

from __future__ import annotations

import pytest

from astune.schema import TaskReaderError
from astune.task_reader.layout import Layout


def subsets(*names: str, card: str = "") -> dict[str, dict[str, list[str]]]:
    return Layout.of("owner/name", names, card).subsets


@pytest.mark.parametrize(
    ("name", "subset", "split"),
    [
        ("main/train-00000-of-00001.parquet", "main", "train"),
        ("data/test-00000-of-00002.parquet", "default", "test"),
        ("data/train_sft-00000-of-00004-2d5a1467fff1081b.parquet", "default", "train_sft"),
        ("en/validation/0000.jsonl", "en", "validation"),
        ("data/math/algebra/test.json", "math/algebra", "test"),
        ("dev.csv", "default", "dev"),
        ("Train.csv", "default", "train"),
        ("gsm8k_train.jsonl", "default", "train"),
        ("my.test.v2.jsonl", "default", "test"),
        ("gsm8k.parquet", "default", "train"),
        ("questions/latest.jsonl", "questions", "train"),
    ],
)
def test_a_name_says_subset_and_split(name, subset, split):
    assert subsets(name) == {subset: {split: [name]}}


def test_shards_are_in_order_and_descriptions_are_no_rows():
    shards = [f"data/train-{n:05}-of-00011.parquet" for n in range(11)]
    others = ["dataset_infos.json", ".cache/x/train.jsonl", "README.md", "script.py", "train.jsonl.part"]
    assert subsets(*reversed(shards), *others) == {"default": {"train": shards}}


def test_files_without_a_split_are_left_out_where_others_have_one():
    assert subsets("train.jsonl", "samples.jsonl") == {"default": {"train": ["train.jsonl"]}}
    assert subsets("part-0.jsonl", "part-1.jsonl") == {"default": {"train": ["part-0.jsonl", "part-1.jsonl"]}}


def test_a_split_in_several_formats_is_read_once():
    assert subsets("train.csv", "train.parquet", "test.csv") == {
        "default": {"train": ["train.parquet"], "test": ["test.csv"]}
    }


def card(configs: str) -> str:
    return f"---\nlicense: mit\nconfigs:\n{configs}---\n# A card\n"


def test_what_the_card_declares_counts():
    names = ["a/x.jsonl", "a/y.jsonl", "b/deep/z.jsonl", "b/w.jsonl", "train.jsonl"]
    declared = card(
        "- config_name: one\n  data_files:\n  - {split: train, path: [a/x.jsonl]}\n  - {split: held, path: a/y*}\n"
        "- config_name: two\n  data_files: {train: 'b/**', test: 'b/*.jsonl'}\n"
        "- config_name: three\n  data_dir: a\n"
        "- config_name: four\n  data_files: 'a/*.jsonl'\n"
        "- config_name: elsewhere\n  data_files: no/such.jsonl\n"
    )
    assert subsets(*names, card=declared) == {
        "one": {"train": ["a/x.jsonl"], "held": ["a/y.jsonl"]},
        "two": {"train": ["b/deep/z.jsonl", "b/w.jsonl"], "test": ["b/w.jsonl"]},
        "three": {"train": ["a/x.jsonl", "a/y.jsonl"]},
        "four": {"train": ["a/x.jsonl", "a/y.jsonl"]},
    }


@pytest.mark.parametrize("text", ["", "# no header", "---\n[broken\n---\n", "---\njust text\n---\n", card("  {}\n")])
def test_a_card_that_declares_nothing_leaves_it_to_the_names(text):
    assert subsets("main/train.jsonl", card=text) == {"main": {"train": ["main/train.jsonl"]}}


def files(layout: Layout, subset: str | None, split: str) -> list[str]:
    return layout.files_of(subset, split, key="the.key")


def test_the_only_subset_the_default_one_and_main_need_no_name():
    assert files(Layout.of("d", ["main/train.jsonl"], ""), None, "train") == ["main/train.jsonl"]
    assert files(Layout.of("d", ["train.jsonl", "more/train.jsonl"], ""), None, "train") == ["train.jsonl"]
    assert files(Layout.of("d", ["main/train.csv", "more/train.csv"], ""), None, "train") == ["main/train.csv"]


def test_an_unknown_subset_or_split_names_those_that_are_there():
    layout = Layout.of("owner/name", ["main/train.jsonl", "main/test.jsonl", "socratic/train.jsonl"], "")
    with pytest.raises(TaskReaderError, match=r"owner/name has no subset 'hard'; it has main, socratic; set .*subset"):
        files(layout, "hard", "train")
    with pytest.raises(TaskReaderError, match=r"owner/name has the subsets easy, hard; set .*subset"):
        files(Layout.of("owner/name", ["easy/train.jsonl", "hard/train.jsonl"], ""), None, "train")
    with pytest.raises(
        TaskReaderError, match=r"name, subset main, has no split 'dev'; it has test, train; set the\.key"
    ):
        files(layout, "main", "dev")


def test_validation_finds_dev_where_nothing_else_is_meant():
    assert files(Layout.of("d", ["dev.jsonl", "train.jsonl"], ""), None, "validation") == ["dev.jsonl"]
    two = Layout.of("d", ["dev.jsonl", "val.jsonl"], "")
    assert files(two, None, "val") == ["val.jsonl"]
    with pytest.raises(TaskReaderError, match="it has dev, val"):
        files(two, None, "validation")


def test_a_data_set_without_data_files_names_the_formats():
    with pytest.raises(
        TaskReaderError, match=r"owner/name holds no data file; expected \.parquet, \.jsonl, \.json, \.csv"
    ):
        subsets("README.md", "gsm8k.py", "data.arrow")
