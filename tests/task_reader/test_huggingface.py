"""Tasks from data sets in the hub's layout: on the hub, in a folder, one file, and offline."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from dataset_making import parquet_of, write_files
from hub_mirror import Mirror, mirror

from astune.config import load_config
from astune.config.schema import HuggingFaceReaderConfig, TaskReaderConfig
from astune.schema import Task, TaskReaderError
from astune.task_reader import TaskOrder, open_task_reader
from astune.task_reader.task_reader_base import TaskReaderBase, TaskReaderHuggingFace, TaskSplits

ROWS = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(20)]
FILES = {
    "README.md": b"# Sums\n",
    "main/train-00000-of-00002.parquet": parquet_of(ROWS[:6]),
    "main/train-00001-of-00002.parquet": parquet_of(ROWS[6:12]),
    "main/test-00000-of-00001.parquet": parquet_of(ROWS[12:16]),
    "hard/train.jsonl": "\n".join(map(json.dumps, ROWS[16:])).encode(),
}


def reader(dataset_path: object, *, base_dir: Path | None = None, **fields: object) -> TaskReaderBase:
    config = HuggingFaceReaderConfig.model_validate({"dataset_path": str(dataset_path), "subset": "main"} | fields)
    return open_task_reader(TaskReaderConfig(type="huggingface", huggingface=config), base_dir=base_dir)


def queries(tasks: list[Task]) -> list[str]:
    return [task.main_query for task in tasks]


@pytest.fixture
def sums():
    with mirror(astune__sums=FILES) as hub:
        yield hub


@pytest.fixture
def at_hub(sums: Mirror, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    monkeypatch.setenv("HF_ENDPOINT", sums.address)
    return sums


class TestRows:
    def test_the_query_field_is_the_query_and_the_whole_row_the_metadata(self, tmp_path):
        splits = reader(write_files(tmp_path, FILES), validation_split="test").read()
        assert [task.metadata for task in splits.training] == ROWS[:12]
        assert queries(splits.validation) == [row["question"] for row in ROWS[12:16]]
        assert {task.env_type for task in splits.training} == {"no_env"}

    def test_ids_and_order_are_the_same_every_time(self, tmp_path):
        write_files(tmp_path, FILES)
        first, second = (reader(tmp_path).training_tasks() for _ in range(2))
        assert first == second
        assert len({task.task_id for task in first}) == 12
        assert TaskOrder(first, 3).take(12) == TaskOrder(second, 3).take(12) != TaskOrder(first, 4).take(12)

    def test_equal_rows_are_all_kept_with_ids_of_their_own(self, tmp_path):
        write_files(tmp_path, {"train.jsonl": b'{"question": "a"}\n' * 3 + b'{"question": "b"}\n'})
        tasks = reader(tmp_path, subset=None).read().training
        first = tasks[0].task_id
        assert [task.task_id for task in tasks[:3]] == [first, f"{first}-2", f"{first}-3"]
        assert queries(tasks) == ["a", "a", "a", "b"]

    def test_a_held_out_row_is_never_trained_on(self, tmp_path):
        write_files(tmp_path, {"train.jsonl": b'{"question": "a"}', "test.jsonl": b'{"question": "a", "answer": "b"}'})
        with pytest.raises(TaskReaderError, match="is also a training task"):
            reader(tmp_path, subset=None, validation_split="test").read()
        with pytest.raises(TaskReaderError, match="is also a training task"):
            reader(tmp_path, subset=None, validation_split="train").read()

    @pytest.mark.parametrize(
        ("row", "complaint"),
        [
            ({"prompt": "q", "answer": "a"}, "found only the fields answer, prompt"),
            ({"question": None, "answer": "a"}, "found None; the row's fields are answer, question"),
            ({"question": " "}, "found ' '"),
            ({"question": ["q"] * 100}, r"found \['q', 'q', .{,40}\.\.\.\]; the row's fields are question"),
        ],
    )
    def test_a_row_without_a_query_names_dataset_split_row_and_fields(self, tmp_path, row, complaint):
        good = json.dumps({"question": "q"})
        write_files(tmp_path, {"data/test-0.jsonl": f"{good}\n{json.dumps(row)}".encode(), "data/train.jsonl": b""})
        with pytest.raises(TaskReaderError, match=complaint) as caught:
            reader(tmp_path, subset="default", training_split="test").read()
        place = f"{tmp_path}, subset default, split test, row 2 of data/test-0.jsonl: expected text in field 'question'"
        assert caught.value.message.startswith(place)
        assert "task_reader.huggingface.query_field" in caught.value.hint

    def test_an_empty_split_is_named(self, tmp_path):
        write_files(tmp_path, {"train.jsonl": b""})
        with pytest.raises(TaskReaderError, match="split train holds no row"):
            reader(tmp_path, subset=None).read()

    def test_the_display_hears_what_is_read(self, tmp_path):
        heard: list[str] = []
        reader(write_files(tmp_path, FILES)).read(heard.append)
        assert f"reading {tmp_path}, subset main, split train: 0 of 12 rows" in heard


class TestPlaces:
    def test_a_single_file_is_a_data_set(self, tmp_path):
        write_files(tmp_path, {"sums.parquet": parquet_of(ROWS), "other.jsonl": b"broken"})
        assert reader(tmp_path / "sums.parquet", subset=None).read() == TaskSplits(
            reader(tmp_path / "sums.parquet", subset="default").training_tasks(), []
        )
        with pytest.raises(
            TaskReaderError, match=r"sums\.parquet has no split 'test'; it has train; .*validation_split"
        ):
            reader(tmp_path / "sums.parquet", subset=None, validation_split="test").read()

    def test_paths_begin_in_the_working_directory_and_then_beside_the_configuration(self, tmp_path):
        write_files(tmp_path, {"data/sums/main/train.csv": b"question\nq\n"})
        assert queries(reader("data/sums", base_dir=tmp_path).training_tasks()) == ["q"]

    def test_an_unknown_format_and_no_path_at_all_are_named(self, tmp_path):
        (tmp_path / "sums.xlsx").touch()
        with pytest.raises(TaskReaderError, match=r"sums\.xlsx is no \.parquet, \.jsonl"):
            reader(tmp_path / "sums.xlsx").read()
        with pytest.raises(TaskReaderError, match=r"set task_reader\.huggingface\.dataset_path"):
            reader("").read()
        with pytest.raises(TaskReaderError, match=r"no folder or file .*/such.*is no hub id; .*openai/gsm8k"):
            reader("./such").read()
        with pytest.raises(TaskReaderError, match=r"download_dataset\.py --target=openai/gsm8k --path=/no/data$"):
            reader("/no/data/openai/gsm8k").read()

    @pytest.mark.parametrize("name", ["huggingface", "huggingface_dat_repo"])
    def test_both_names_of_section_and_type_are_read(self, tmp_path, name):
        write_files(tmp_path, FILES)
        conf = tmp_path / "conf.yaml"
        conf.write_text(
            f"astune:\n  task_reader:\n    type: {name}\n    {name}: {{dataset_path: '{tmp_path}', subset: hard}}\n"
        )
        config = load_config(conf).task_reader
        opened = open_task_reader(config)
        assert isinstance(opened, TaskReaderHuggingFace)
        assert queries(opened.training_tasks()) == [row["question"] for row in ROWS[16:]]
        again = TaskReaderConfig(type=name, huggingface=config.huggingface)
        assert isinstance(open_task_reader(again), TaskReaderHuggingFace)


class TestHub:
    def test_only_what_is_read_is_fetched_and_only_once(self, at_hub):
        assert queries(reader("astune/sums").read().training) == [row["question"] for row in ROWS[:12]]
        fetched = [line.rpartition("/")[2] for line in at_hub.downloads()]
        assert fetched == ["README.md", "train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
        assert reader("astune/sums", validation_split="test").read().validation
        assert [line.rpartition("/")[2] for line in at_hub.downloads()[3:]] == ["test-00000-of-00001.parquet"]

    def test_a_new_revision_is_fetched_again(self, at_hub):
        reader("astune/sums").read()
        at_hub.datasets["astune/sums"]["main/train-00001-of-00002.parquet"] = parquet_of([{"question": "new"}])
        assert queries(reader("astune/sums").read().training)[6:] == ["new"]

    def test_files_that_the_hub_has_no_longer_do_not_come_back_offline(self, at_hub, monkeypatch):
        reader("astune/sums").read()
        at_hub.datasets["astune/sums"] = {"main/train-00000-of-00001.parquet": parquet_of([{"question": "new"}])}
        assert queries(reader("astune/sums").read().training) == ["new"]
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert queries(reader("astune/sums").read().training) == ["new"]

    def test_an_unknown_data_set_names_the_hub_and_the_token(self, at_hub):
        with pytest.raises(TaskReaderError, match=rf"{at_hub.address} knows no data set 'astune/nothing'.*HF_TOKEN"):
            reader("astune/nothing").read()

    def test_an_unknown_subset_names_those_of_the_hub(self, at_hub):
        with pytest.raises(TaskReaderError, match="astune/sums has no subset 'soft'; it has hard, main"):
            reader("astune/sums", subset="soft").read()

    def test_offline_it_says_what_to_do_at_once(self):
        started = time.monotonic()
        with pytest.raises(TaskReaderError) as caught:
            reader("openai/gsm8k").read()
        assert time.monotonic() - started < 20
        assert "\n" not in str(caught.value)
        for part in ("openai/gsm8k is neither at", "127.0.0.1:9 cannot be reached", "refused"):
            assert part in caught.value.message
        for part in ("scripts/download_dataset.py --target=openai/gsm8k", "HF_ENDPOINT", "dataset_path"):
            assert part in caught.value.hint

    @pytest.mark.parametrize("offline", ["HF_HUB_OFFLINE", "HF_ENDPOINT"])
    def test_offline_what_was_read_before_is_read_again(self, at_hub, monkeypatch, caplog, offline):
        before = reader("astune/sums").read()
        asked = len(at_hub.requests)
        monkeypatch.setenv(offline, {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}[offline])
        assert reader("astune/sums").read() == before
        assert "astune/sums is read from" in caplog.text
        assert len(at_hub.requests) == asked
        with pytest.raises(
            TaskReaderError, match=r"astune/sums \(offline, from .*\), subset main, has no split 'test'"
        ):
            reader("astune/sums", validation_split="test").read()

    def test_offline_what_another_program_has_kept_is_read(self, sums, monkeypatch, tmp_path):
        """Hugging Face's own client fetches from the mirror, which so is shown to be like the hub."""
        from huggingface_hub import snapshot_download

        cache = tmp_path / "hub"
        snapshot_download("astune/sums", repo_type="dataset", endpoint=sums.address, cache_dir=cache)
        monkeypatch.setenv("HF_HUB_CACHE", str(cache))
        splits = reader("astune/sums", validation_split="test").read()
        assert [task.metadata for task in splits.training] == ROWS[:12]


def test_all_of_gsm8k_is_read_from_the_hubs_layout(gsm8k_files, monkeypatch):
    with mirror(openai__gsm8k=gsm8k_files) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        splits = reader("openai/gsm8k", validation_split="test").read()
    assert (len(splits.training), len(splits.validation)) == (7473, 1319)
    assert splits.validation[0].main_query.startswith("Janet")
    assert splits.validation[0].metadata["answer"].endswith("#### 18")
    assert len({task.task_id for task in splits.training + splits.validation}) == 8792
