"""Tasks from documents with a model of rules behind a real server, by the command itself."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from answering import AnsweringServer, answering
from rule_models import ReadingModel, command, use_own_cache

from astune.config import load_config
from astune.data_generator.documents import Document, decoded, read_documents
from astune.data_generator.duplicates import Duplicates
from astune.data_generator.passages import passages_of
from astune.schema import TaskReaderError
from astune.task_reader import TaskOrder, open_task_reader
from astune.task_reader.data_reader import tasks_in

DOCS = Path(__file__).parents[2] / "docs" / "en"


def words(text: str) -> int:
    return len(text.split())


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def made_from(paths: list[Path], out: Path, server: AnsweringServer, *more: str) -> int:
    sets = [f"--set=helper_model.base_url={server.url}", *(f"--set={each}" for each in more)]
    return command(["data", "from-docs", *map(str, paths), "--out", str(out), *sets])


@pytest.fixture(autouse=True)
def _own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smol_folder: Path) -> None:
    use_own_cache(tmp_path / "cache", monkeypatch)


def test_text_is_read_in_many_encodings_and_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    text = "Grüße aus Zürich: die Brücke ist 230 Meter lang und größer als früher.\n" * 4
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"):
        (tmp_path / f"{encoding}.txt").write_bytes(text.replace("230", str(len(encoding))).encode(encoding))
    (tmp_path / "gb.txt").write_bytes(("黄河全长约5464公里，流经九个省区，最后注入渤海。" * 8).encode("gb18030"))
    (tmp_path / "copy.md").write_text(text.replace("230", "5"))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "bytes.txt").write_bytes(b"a\0b")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / ".hidden.txt").write_text(text)
    documents, unread = read_documents([tmp_path])
    assert "Zürich" in next(each.text for each in documents if each.name == "latin-1.txt")
    assert "渤海" in next(each.text for each in documents if each.name == "gb.txt")
    reasons = {each.name: each.reason for each in unread}
    assert reasons["utf-8.txt"] == "the same as copy.md"
    assert "no format" in reasons["picture.png"]
    assert "no text" in reasons["bytes.txt"]
    assert "no text" in reasons["empty.txt"]
    assert ".hidden.txt" not in reasons
    assert all("Grüße" in each.text or "黄河" in each.text for each in documents)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("fee is €25", "cp1252"),
        ("The fee is €25 a day – “members” pay nothing.\n" * 20, "cp1252"),
        ("Café", "cp1252"),
        ("Inträdet kostar fem euro och barn betalar hälften; medlemmar går in gratis. " * 3, "cp1252"),
        ("A entrada custa cinco euros e as crianças pagam metade; os membros não pagam. " * 3, "cp1252"),
        ("Opłata za wstęp wynosi pięć złotych.", "cp1250"),
        ("A belépő ára öt euró, a gyerekek felét fizetik; a hűséges tagok ingyen jöhetnek be. " * 3, "cp1250"),
        ("Giriş ücreti beş lira, çocuklar yarısını öder; üyeler ücretsiz girer. " * 3, "cp1254"),
        ("Входная плата составляет пять рублей, дети платят половину.", "cp1251"),
    ],
)
def test_western_text_is_read_as_such_and_other_text_by_a_guess(text: str, encoding: str) -> None:
    assert decoded(text.encode(encoding)) == text


def test_a_name_in_another_encoding_is_spelled_out(tmp_path: Path) -> None:
    for name in (b"\xce\xc4.md", b"\xce\xc5.md"):
        (tmp_path / os.fsdecode(name)).write_text(f"# Text\n{name!r}")
    documents, _ = read_documents([tmp_path])
    assert [each.name.encode("ascii") for each in documents] == [b"\\udcce\\udcc4.md", b"\\udcce\\udcc5.md"]


def test_a_path_that_is_not_there_and_a_folder_without_documents_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TaskReaderError, match="no file or folder"):
        read_documents([tmp_path / "none"])
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(TaskReaderError, match=r"a\.png: \.png is no format"):
        read_documents([tmp_path])


def test_passages_keep_headings_tables_and_sentences_and_the_limit() -> None:
    rows = "\n".join(f"| row {n} | value {n} of the long table |" for n in range(60))
    sentences = " ".join(
        f"Sentence {n} says that e.g. Dr. Fox met No. {n} of them at the old bridge." for n in range(60)
    )
    table = f"| a | b |\n|---|---|\n{rows}"
    code = "```\n# no heading\nx = 1\n```"
    text = f"# Top\n\n{sentences}\n\n## Table\n\n{table}\n\n## Code\n\n{code}\n\n{sentences}"
    made = passages_of(Document("d.md", text), 100, words)
    assert all(words(each.text) <= 110 for each in made)
    assert all(text.count(line) for each in made for line in each.text.splitlines() if line.startswith("# no"))
    tables = [each for each in made if "row 5 " in each.text or "row 50 " in each.text]
    assert len(tables) > 1
    assert all("| a | b |\n|---|---|" in each.text for each in tables)
    assert tables[0].headings == ("Top", "Table")
    assert all(
        f"Sentence {n} says that e.g. Dr. Fox met No. {n} of them at the old bridge."
        in " ".join(each.text.replace("\n", " ") for each in made)
        for n in range(60)
    )
    assert not any(each.text.rstrip().endswith(("e.g.", "Dr.", "No.")) for each in made)


def test_a_word_without_end_is_cut_too_and_a_heading_of_blanks_takes_no_time() -> None:
    picture = f"![a picture](data:image/png;base64,{'iVBORw0KGgo' * 2000})"
    wide = "|".join(f" column {n} " for n in range(400))
    blanks = f"# The bridge{' ' * 20_000}over the river ##"
    text = f"{blanks}\n\nIt was built long ago, {picture} as one sees.\n\n|{wide}|\n|---|\n|{wide}|\n|{wide}|"
    made = passages_of(Document("d.md", text), 100, lambda text: len(text) // 4)
    assert max(len(each.text) // 4 for each in made) <= 210
    assert made[0].headings[0].split() == ["The", "bridge", "over", "the", "river"]
    assert "".join(each.text for each in made).count("column 399") == 3


def test_a_question_in_nearly_the_same_words_is_a_duplicate_and_one_with_other_numbers_is_not() -> None:
    asked = Duplicates()
    first = "Which port does the environment service of a project listen on when nobody names another in its settings?"
    asked.add(first)
    assert asked.twin_of(first.upper()) == first
    assert asked.twin_of(first.replace("nobody", "no one")) == first
    assert asked.twin_of("Which file holds the settings of the sandbox?") is None
    problem = "Anna has 40 apples and buys 12 more at the market. How many apples has she now?"
    asked.add(problem)
    assert asked.twin_of(problem.replace("12", "13")) is None
    assert asked.twin_of(problem.replace("Anna", "Ada")) == problem


LONG = "Ben writes a rule on the board, reads it to his class twice, and asks what it gives for the first of them: {}."


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("12 + 5", "12 - 5"),
        ("12 - 5", "12 * 5"),
        ("12 × 5", "12 ÷ 5"),
        ("12 / 5", "12 % 5"),
        ("12 - 5 + 3", "12 + 5 - 3"),
        ("(12 + 5) * 2", "12 + (5 * 2)"),
        ("(a + b) * c", "(a + b * c)"),
        ("-3", "3"),
        ("4 - -3", "4 - 3"),
        ("5!", "5"),
        ("50 %", "50"),
        ("a < b", "a > b"),
        ("x^2", "x 2"),
        ("C++", "C#"),
        ("C#", "C"),
        ("--with", "with"),
        ("€5", "£5"),
    ],
)
def test_questions_that_differ_in_an_operator_or_a_sign_are_different(first: str, second: str) -> None:
    for asked_as in ("Compute {}.", "{}?", LONG):
        for one, other in ((first, second), (second, first)):
            asked = Duplicates()
            asked.add(asked_as.format(one))
            assert asked.twin_of(asked_as.format(other)) is None
            assert asked.twin_of(asked_as.format(one)) is not None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Compute 12 \u2212 5.", "compute 12-5"),
        ("Is it well-known (or **not**) and/or 50 % true?", "Is it well known, or not, and or 50% true"),
        ("Which one - of all the names - is it?", "Which one, of all the names, is it?"),
    ],
)
def test_other_spacing_and_punctuation_make_no_other_question(first: str, second: str) -> None:
    asked = Duplicates()
    asked.add(first)
    assert asked.twin_of(second) == first


@pytest.mark.slow
def test_tasks_from_our_own_documents_are_verified_and_split_by_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ReadingModel()
    with answering(model) as server:
        settings = ("task_reader.data_generation.closed_book=true", "task_reader.data_generation.number=60")
        assert (
            made_from(
                [DOCS / "workflow.md", DOCS / "judge.md", DOCS / "tasks.md"], tmp_path / "t.jsonl", server, *settings
            )
            == 0
        )
    training, held_out = lines_of(tmp_path / "t.jsonl"), lines_of(tmp_path / "t.held_out.jsonl")
    assert len(training) + len(held_out) == 60
    assert len(tasks_in(tmp_path / "t.jsonl")) == len(training)
    documents = [{each["metadata"]["document"] for each in split} for split in (training, held_out)]
    assert all(documents)
    assert not documents[0] & documents[1]
    for task in training + held_out:
        known = task["metadata"]
        assert all(any(quote in passage["text"] for passage in known["passages"]) for quote in known["evidence"])
        assert known["answer"].lower() not in task["main_query"].lower()
        assert known["hops"] == len(known["passages"])
    assert {task["metadata"]["hops"] for task in training} == {1, 2}
    wrong = Counter(model.mistakes.get(task["main_query"], "") for task in training + held_out)
    assert sum(n for kind, n in wrong.items() if kind) <= 1, wrong
    page = (tmp_path / "t.report.html").read_text()
    for reason in (
        "the answer stands in the question",
        "what is quoted does not stand",
        "points at a passage",
        "answer is another",
    ):
        assert reason in page
    assert "<script src" not in page
    assert "http://" not in page.split("<h1>")[0]
    assert "60" in capsys.readouterr().out


@pytest.mark.slow
def test_the_same_command_again_asks_nothing_and_writes_the_same_file(tmp_path: Path) -> None:
    with answering(ReadingModel()) as server:
        settings = ("task_reader.data_generation.number=12",)
        assert made_from([DOCS / "judge.md"], tmp_path / "a.jsonl", server, *settings) == 0
        asked = len(server.bodies)
        assert made_from([DOCS / "judge.md"], tmp_path / "b.jsonl", server, *settings) == 0
        assert len(server.bodies) == asked
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert len(lines_of(tmp_path / "a.jsonl")) == 12
    assert not lines_of(tmp_path / "a.held_out.jsonl")


@pytest.mark.slow
def test_a_budget_that_is_used_up_ends_it_and_a_larger_one_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(ReadingModel()) as server:
        small, number = "helper_model.budget_tokens=300", "task_reader.data_generation.number=12"
        assert made_from([DOCS / "judge.md"], tmp_path / "a.jsonl", server, small, number) == 1
        assert "budget_tokens" in capsys.readouterr().err
        assert not (tmp_path / "a.jsonl").exists()
        asked = len(server.bodies)
        assert made_from([DOCS / "judge.md"], tmp_path / "a.jsonl", server, number) == 0
        assert len({json.dumps(body) for body in server.bodies}) == len(server.bodies) > asked > 0


def test_a_dry_run_reads_and_asks_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(ReadingModel()) as server:
        sets = ["--set", f"helper_model.base_url={server.url}"]
        assert (
            command(
                ["data", "from-docs", str(DOCS / "tasks.md"), "--out", str(tmp_path / "a.jsonl"), "--dry-run", *sets]
            )
            == 0
        )
        assert not server.bodies
    assert "passages of" in capsys.readouterr().out
    assert not list(tmp_path.glob("a*"))


@pytest.mark.slow
def test_made_tasks_that_were_measured_come_from_easy_to_hard(tmp_path: Path, tiny_folder: Path) -> None:
    """`astune data measure` plays the tasks of the reader, which keeps their rates for the experiment's model."""
    (tmp_path / "kinds.py").write_text(
        "from astune import Workflow, WorkflowOutput\n\n\nclass Kinds(Workflow):\n"
        "    async def execute(self, task, proxy):\n"
        "        answer = await proxy.achat([{'role': 'user', 'content': task.main_query[:40]}])\n"
        "        part = len(task.main_query) % 3\n"
        "        return WorkflowOutput(reward=[0.0, float(len(answer['content']) % 2), 1.0][part])\n"
    )
    with answering(ReadingModel(planted=0)) as server:
        making = {"documents": [str(DOCS / "sandbox.md"), str(DOCS / "judge.md")], "number": 12}
        experiment = {
            "model": {"path": str(tiny_folder), "dtype": "float32", "device": "cpu"},
            "helper_model": {"base_url": server.url},
            "task_reader": {"type": "data_generation", "data_generation": making, "curriculum": "success_rate"},
            "rollout": {"workflow": "kinds.py->Kinds", "max_model_len": 256, "max_response_length_in_one_turn": 2},
        }
        conf = tmp_path / "kinds.yaml"
        conf.write_text(json.dumps({"astune": experiment}))
        config = load_config(conf)

        def order() -> TaskOrder:
            tasks = open_task_reader(config.task_reader, base_dir=tmp_path, experiment=config).training_tasks()
            return TaskOrder(tasks, 0, curriculum=config.task_reader.curriculum)

        with pytest.raises(TaskReaderError, match="astune data measure"):
            order()
        asked = len(server.bodies)
        assert (
            command(["data", "measure", "--conf", str(conf), "--out", str(tmp_path / "m.jsonl"), "--tries", "8"]) == 0
        )
        made = order()
        assert len(server.bodies) == asked, "nothing is made a second time"
    n = len(tasks_in(tmp_path / "m.jsonl"))
    taken = [task.metadata["success_rate"] for task in made.take(n)]
    assert taken[0] == 1.0
    assert taken[-1] == 0.0
    blocks = [sorted(taken[at : at + -(-n // 8)], reverse=True) for at in range(0, n, -(-n // 8))]
    assert [rate for block in blocks for rate in block] == sorted(taken, reverse=True)
