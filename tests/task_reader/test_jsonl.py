"""Tasks from JSONL files, and what is wrong with bad ones, by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astune.config.schema import FileConfig, JsonlReaderConfig, TaskReaderConfig
from astune.schema import ConfigError, Task, TaskReaderError
from astune.task_reader import TaskReaderBase, TaskReaderJsonl, open_task_reader


def config(training: Path | None, validation: Path | None = None, query_field: str = "main_query") -> TaskReaderConfig:
    def file(path: Path | None) -> FileConfig | None:
        return FileConfig(file_path=str(path)) if path else None

    jsonl = JsonlReaderConfig(training=file(training), validation=file(validation), query_field=query_field)
    return TaskReaderConfig(jsonl=jsonl)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def read_one(tmp_path: Path, *rows: object, query_field: str = "main_query") -> list[Task]:
    path = write(tmp_path / "tasks.jsonl", *rows)
    return open_task_reader(config(path, query_field=query_field)).training_tasks()


def test_a_line_in_the_task_format_is_a_task(tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    full = {
        "main_query": "q",
        "init_messages": messages,
        "task_id": "a",
        "env_type": "calculator",
        "metadata": {"x": 1},
    }
    first, second = read_one(tmp_path, full, {"init_messages": messages})
    assert first == Task(**full)
    assert (second.main_query, second.env_type, second.init_messages) == ("", "no_env", messages)


def test_a_missing_id_comes_from_the_content_alone(tmp_path):
    one, two = read_one(tmp_path, {"main_query": "a", "env_type": "no_env"}, {"main_query": "b"})
    (again,) = read_one(tmp_path, '{"env_type": "no_env",   "main_query": "a"}')
    assert one.task_id == again.task_id != two.task_id


def test_a_raw_row_becomes_metadata_and_its_query_field_the_query(tmp_path):
    row = {"question": "2+2?", "answer": "#### 4", "extra": [1]}
    (task,) = read_one(tmp_path, row, query_field="question")
    assert (task.main_query, task.metadata, task.env_type) == ("2+2?", row, "no_env")


def test_blank_lines_and_a_byte_order_mark_are_no_matter(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"main_query": "a"}\r\n\r\n{"main_query": "b\xe2\x80\xa8c"}')
    assert [task.main_query for task in open_task_reader(config(path)).training_tasks()] == ["a", "b\u2028c"]


@pytest.mark.parametrize(("name", "text"), [("t.csv", "main_query,answer\n"), ("t.json", '[\n {"main_query": "q"}\n]')])
def test_a_file_of_another_format_is_named_with_the_reader_of_its_kind(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(TaskReaderError, match=r"does not have one JSON object per line; set task_reader.type to hugg"):
        open_task_reader(config(tmp_path / name)).training_tasks()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{'main_query': 'q'}", "expected one JSON object, and this is not JSON"),
        ('{"main_query": "q"', "this is not JSON"),
        ('[{"main_query": "q"}]', "expected one JSON object, found list"),
        ('"q"', "expected one JSON object, found str"),
        ("{}", "a task needs 'main_query' or 'init_messages'"),
        ('{"main_query": ""}', "a task needs 'main_query' or 'init_messages'"),
        ('{"main_query": 7}', "field 'main_query'"),
        ('{"main_query": "q", "metadata": []}', "field 'metadata'"),
        ('{"init_messages": [{"content": "q"}]}', "needs 'role' and 'content'"),
        ('{"init_messages": ["q"]}', "field 'init_messages.0'"),
        ('{"init_messages": [{"role": "user", "content": 5}]}', "message 1: .*content is text or a list .*not int"),
        ('{"init_messages": [{"role": "user", "content": null}]}', "message 1: .* has no content"),
        ('{"init_messages": [{"role": "user", "content": [5]}]}', "message 1: .*block of kind 'int'"),
        (
            '{"messages": [{"role": "user", "content": {"a": 1}}, {"role": "assistant", "content": "b"}]}',
            "message 1: .*not dict",
        ),
        (
            '{"prompt": [{"role": "user", "content": 5}], "chosen": "a", "rejected": "b"}',
            "'prompt', message 1: .*not int",
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user"}]}',
            "'messages', message 3: .*has no content",
        ),
        (
            '{"prompt": "a", "chosen": [{"role": "assistant", "content": "b"}, {"role": "user", "content": 5}], '
            '"rejected": "c"}',
            "'chosen', message 2: .*not int",
        ),
        (
            '{"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "tool_calls": [5]}]}',
            "'rejected', message 1: .*not a tool call",
        ),
        ('{"question": "q"}', r"a task has no field 'question'.*query_field"),
        ('{"main_query": "q", "task_id": " "}', "task_id is empty"),
        ('{"main_query": "q", "task_id": ["a"]}', "field 'task_id'"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path, line, complaint):
    with pytest.raises(TaskReaderError, match=rf"(?s)tasks\.jsonl:2: .*{complaint}") as caught:
        read_one(tmp_path, {"main_query": "fine"}, line)
    assert caught.value.hint


def test_messages_that_a_model_can_read_are_a_task(tmp_path):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "b", "tool_call_id": "c"},
    ]
    assert read_one(tmp_path, {"init_messages": messages})[0].init_messages == messages


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"main_query": "a"}\n{"main_query": "\xff"}\n')
    with pytest.raises(TaskReaderError, match=r"t\.jsonl:2: not UTF-8"):
        open_task_reader(config(path)).training_tasks()


def test_a_raw_row_without_the_query_field_names_what_it_has(tmp_path):
    with pytest.raises(TaskReaderError, match=r"tasks\.jsonl:1: .*'question', found only the fields answer, prompt"):
        read_one(tmp_path, {"prompt": "q", "answer": "a"}, query_field="question")
    with pytest.raises(TaskReaderError, match=r"tasks\.jsonl:1: .*'question', found 7"):
        read_one(tmp_path, {"question": 7}, query_field="question")


def test_an_id_twice_names_both_lines(tmp_path):
    with pytest.raises(TaskReaderError, match=r"tasks\.jsonl:3: task_id 'a' is already on line 1"):
        read_one(tmp_path, *({"main_query": query, "task_id": i} for query, i in (("q", "a"), ("r", "b"), ("s", "a"))))
    with pytest.raises(TaskReaderError, match=r"tasks\.jsonl:2: .*already on line 1"):
        read_one(tmp_path, {"main_query": "same"}, {"main_query": "same"})


def test_a_file_that_is_not_there_names_where_it_was_looked_for(tmp_path):
    reader = TaskReaderJsonl(config(Path("no/such.jsonl")), base_dir=tmp_path)
    with pytest.raises(TaskReaderError) as caught:
        reader.training_tasks()
    assert str(tmp_path / "no/such.jsonl") in caught.value.message
    assert "task_reader.jsonl.training.file_path" in caught.value.message


def test_a_file_that_is_misspelt_is_looked_for_in_one_place(tmp_path, monkeypatch):
    write(tmp_path / "train.jsonl", {"main_query": "q"})
    monkeypatch.chdir(tmp_path)
    reader = TaskReaderJsonl(config(Path("trai.jsonl")), base_dir=Path())
    with pytest.raises(TaskReaderError) as caught:
        reader.training_tasks()
    assert caught.value.message.endswith(f"there is no file {tmp_path}/trai.jsonl")
    assert caught.value.hint == "did you mean train.jsonl?"


def test_a_file_is_found_beside_the_configuration(tmp_path):
    write(tmp_path / "t.jsonl", {"main_query": "q"})
    assert len(TaskReaderJsonl(config(Path("t.jsonl")), base_dir=tmp_path).training_tasks()) == 1


def test_an_empty_file_and_no_file_at_all_are_errors(tmp_path):
    with pytest.raises(TaskReaderError, match="holds no task"):
        read_one(tmp_path, "")
    with pytest.raises(TaskReaderError, match=r"set task_reader\.jsonl\.training\.file_path"):
        open_task_reader(config(None)).read()


def test_a_run_may_have_nothing_held_out(tmp_path):
    assert open_task_reader(config(write(tmp_path / "t.jsonl", {"main_query": "q"}))).read().validation == []


@pytest.mark.parametrize(
    ("training", "held_out", "complaint"),
    [
        ({"main_query": "q", "task_id": "a"}, {"main_query": "r", "task_id": "a"}, "'a' is also a training task"),
        (
            {"main_query": "q", "task_id": "a"},
            {"main_query": "q", "task_id": "b", "metadata": {"answer": 1}},
            "'b' is also a training task, under the id 'a'",
        ),
        (
            {"main_query": "q", "task_id": "a", "env_type": "x", "metadata": {"map": 1}},
            {"main_query": "q", "task_id": "b", "env_type": "x", "metadata": {"map": 1}},
            "under the id 'a'",
        ),
    ],
)
def test_a_held_out_task_is_never_a_training_task(tmp_path, training, held_out, complaint):
    reader = open_task_reader(config(write(tmp_path / "t.jsonl", training), write(tmp_path / "v.jsonl", held_out)))
    with pytest.raises(TaskReaderError, match=complaint):
        reader.read()


def test_in_an_environment_the_metadata_belongs_to_the_question(tmp_path):
    rows = [{"main_query": "Cross.", "env_type": "frozenlake", "metadata": {"map": i}} for i in range(2)]
    reader = open_task_reader(config(write(tmp_path / "t.jsonl", rows[0]), write(tmp_path / "v.jsonl", rows[1])))
    assert len(reader.read().validation) == 1


def test_all_gsm8k_rows_are_read(gsm8k):
    splits = open_task_reader(config(gsm8k / "train.jsonl", gsm8k / "test.jsonl", query_field="question")).read()
    assert (len(splits.training), len(splits.validation)) == (7473, 1319)
    assert splits.validation[0].main_query.startswith("Janet")
    assert splits.validation[0].metadata["answer"].endswith("#### 18")


class TwiceTheSame(TaskReaderBase):
    def training_tasks(self):
        return [Task(task_id="a", main_query=query) for query in "qr"]

    def validation_tasks(self):
        return []


class Lacking(TaskReaderBase):
    def training_tasks(self):
        return []


def test_a_reader_of_ones_own_is_checked_like_any_other():
    with pytest.raises(TaskReaderError, match="'a' is there twice among the training tasks"):
        open_task_reader(TaskReaderConfig(type=f"{__name__}->TwiceTheSame")).read()


class FailsIn(TwiceTheSame):
    """Fails as its parameter says."""

    def training_tasks(self):
        match self.config.params["how"]:
            case "key":
                return [{}["question"]]
            case "file":
                return [open("no_such_rows.csv")]
            case "generator":
                return (Task(task_id=row["id"], main_query="q") for row in [{}])
            case "row":
                return [{"main_query": "q"}]
            case "none":
                return None


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("key", ["FailsIn.training_tasks", "test_jsonl.py:", "KeyError: 'question'", "reader's own code"]),
        ("file", ["FileNotFoundError", "no_such_rows.csv", "self.find(path)"]),
        ("generator", ["FailsIn.training_tasks", "KeyError: 'id'"]),
        ("row", ["{'main_query': 'q'}", "return a list of astune.Task"]),
        ("none", ["returned None", "return a list of astune.Task"]),
    ],
)
def test_what_fails_in_a_reader_of_ones_own_is_named(how, words):
    with pytest.raises(TaskReaderError) as failure:
        open_task_reader(TaskReaderConfig(type=f"{__name__}->FailsIn", params={"how": how})).read()
    assert [word for word in words if word not in str(failure.value)] == []


class Replaces(TwiceTheSame):
    def read(self):  # type: ignore[override]
        return []


class Unmade(TwiceTheSame):
    def __init__(self, config):
        super().__init__(config)


@pytest.mark.parametrize(
    ("name", "words"), [("Replaces", "has a method `read`"), ("Unmade", "making Unmade: TypeError")]
)
def test_a_reader_that_cannot_be_used_is_refused_by_name(name, words):
    with pytest.raises(ConfigError, match=words):
        open_task_reader(TaskReaderConfig(type=f"{__name__}->{name}"))


class Counts(TaskReaderBase):
    def __init__(self, config, *, base_dir=None, up_to, step=1):
        super().__init__(config, base_dir=base_dir)
        self.numbers = range(0, up_to, step)

    def training_tasks(self):
        return [Task(str(number), f"Say {number}") for number in self.numbers]

    def validation_tasks(self):
        return []


def test_params_are_keyword_arguments_of_a_readers_class():
    config = TaskReaderConfig(type=f"{__name__}->Counts", params={"up_to": 6, "step": 2})
    assert [task.task_id for task in open_task_reader(config).read().training] == ["0", "2", "4"]


@pytest.mark.parametrize(
    ("params", "message", "hint"),
    [
        ({"up_to": 6, "steps": 2}, "task_reader.params.steps: Counts accepts no argument steps", "did you mean step?"),
        ({"step": 2}, "task_reader.params: Counts requires up_to", "set task_reader.params.up_to"),
    ],
)
def test_a_param_that_a_reader_does_not_take_is_named(params, message, hint):
    with pytest.raises(ConfigError, match=message) as error:
        open_task_reader(TaskReaderConfig(type=f"{__name__}->Counts", params=params))
    assert error.value.hint == hint


class FindsItsFile(TwiceTheSame):
    def training_tasks(self):
        return [Task(task_id="a", main_query=self.find(self.config.params["file"]).read_text())]


def test_a_file_is_found_in_the_working_directory_or_else_beside_the_configuration(tmp_path, monkeypatch):
    beside, here = tmp_path / "conf", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
        (folder / "rows.txt").write_text(folder.name)
    monkeypatch.chdir(here)

    def read(file: str) -> str:
        config = TaskReaderConfig(type=f"{__name__}->FindsItsFile", params={"file": file})
        return open_task_reader(config, base_dir=beside).read().training[0].main_query

    assert read("rows.txt") == "here"
    (here / "rows.txt").unlink()
    assert read("rows.txt") == "conf"
    with pytest.raises(TaskReaderError, match=r"there is no file .*here/row.txt nor .*conf/row.txt; did you mean rows"):
        read("row.txt")


@pytest.mark.parametrize("kind", ["csv", f"{__name__}->Lacking", "astune.schema->Task"])
def test_what_is_no_reader_is_refused(kind):
    with pytest.raises(ConfigError, match=r"task_reader\.type"):
        open_task_reader(TaskReaderConfig(type=kind))
