"""`make e2e-data`: tasks from documents and from a few examples at full size, with planted mistakes and kills.

Models of rules stand for a capable helper model, so the rates of mistakes are known. What they show is that the
filters, the files and the resuming are right; how many mistakes a language model makes, no figure of theirs says.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from answering import answering
from rule_models import ReadingModel, SumModel, command, use_own_cache
from test_expand import solved, written_seeds

from astune.data_generator.documents import read_documents
from astune.runs import RunDirectory, resolve_run
from tutorial.example_calculator.tasks import make_tasks

pytestmark = pytest.mark.e2e

DOCS = Path(__file__).parents[2] / "docs" / "en"
PYTHON_DOCS = Path("/usr/share/doc/python3.11/html/library")
KILLS = 20
AXES = "axes=[wording,numbers,harder,easier]"
CALCULATOR = Path(__file__).parents[2] / "tutorial" / "example_calculator" / "calculator.yaml"


@pytest.fixture(autouse=True)
def _own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smol_folder: Path) -> None:
    use_own_cache(tmp_path / "cache", monkeypatch)


def lines_of(path: Path) -> list[dict[str, Any]]:
    both = (path, path.with_name(f"{path.stem}.held_out.jsonl"))
    return [json.loads(line) for each in both for line in each.read_text().splitlines()]


def sets(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def test_documents_become_verified_tasks_and_planted_mistakes_do_not(tmp_path: Path) -> None:
    model = ReadingModel(planted=0.2, errs=0.05)
    there = [PYTHON_DOCS] if PYTHON_DOCS.is_dir() and importlib.util.find_spec("markitdown") else []
    with answering(model) as server:
        more = sets(f"helper_model.base_url={server.url}", "task_reader.data_generation.closed_book=true")
        out = tmp_path / "tasks.jsonl"
        assert (
            command(["data", "from-docs", str(DOCS), *map(str, there), "--out", str(out), "--num", "300", *more]) == 0
        )
    tasks = lines_of(out)
    wrong = Counter(model.mistakes[task["main_query"]] for task in tasks if task["main_query"] in model.mistakes)
    mistaken = model.proposed.total() - model.proposed[""]
    print(  # noqa: T201 - what the page shows
        f"\nfrom documents: {model.proposed.total()} proposed, {mistaken} of them wrong; "
        f"{len(tasks)} tasks, {wrong.total()} of them wrong ({dict(wrong)})"
    )
    assert len(tasks) >= 200
    assert wrong.total() <= 0.02 * len(tasks)


def test_twenty_examples_become_five_hundred_tasks_that_a_solver_of_its_own_confirms(tmp_path: Path) -> None:
    model = SumModel(planted=0.2, errs=0.05)
    seeds = written_seeds(tmp_path / "seeds.jsonl", 20)
    out = tmp_path / "tasks.jsonl"
    with answering(model) as server:
        more = sets(f"helper_model.base_url={server.url}", f"task_reader.data_generation.{AXES}")
        assert command(["data", "expand", str(seeds), "--out", str(out), "--num", "500", *more]) == 0
    tasks = lines_of(out)
    wrong = [task for task in tasks if int(task["metadata"]["answer"]) != solved(task)]
    print(f"\nfrom 20 examples: {len(tasks)} tasks with checkers, {len(wrong)} of them wrong; planted 20 %")  # noqa: T201
    assert len(tasks) == 500
    assert all("checker" in task["metadata"] for task in tasks)
    assert len(wrong) <= 0.02 * len(tasks)


def test_training_on_what_twenty_examples_became_succeeds_on_the_problems_that_were_held_out_before(
    tmp_path: Path,
) -> None:
    """The small real model and the calculator's tutorial, with the 500 tasks in place of its 1,000."""
    seeds, out, held_out = (tmp_path / f"{name}.jsonl" for name in ("seeds", "tasks", "held_out"))
    rows = [dict(json.loads(line), env_type="calculator") for line in written_seeds(seeds, 20).open()]
    seeds.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out.write_text("".join(json.dumps(asdict(task)) + "\n" for task in make_tasks("validation", 96)))
    reader = "task_reader.data_generation"
    with answering(SumModel(planted=0.2, errs=0.05)) as server:
        more = sets(f"helper_model.base_url={server.url}", f"{reader}.held_out=0", f"{reader}.{AXES}")
        assert command(["data", "expand", str(seeds), "--out", str(out), "--num", "500", *more]) == 0
    files = (f"task_reader.jsonl.training.file_path={out}", f"task_reader.jsonl.validation.file_path={held_out}")
    settings = sets("task_reader.type=jsonl", "task_reader.params={}", "task_reader.stratify_by=null", *files)
    words = ["--conf", str(CALCULATOR), *settings, "--set", f"record_dir={tmp_path / 'runs'}"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    subprocess.run([sys.executable, "-m", "astune", *words], check=True, env=environment)
    run = RunDirectory.open(resolve_run(tmp_path / "runs" / "calculator"))
    rates = [line.metrics["reward/success_rate"] for line in run.metrics() if line.kind == "validation"]
    print(f"\ntrained on 500 tasks from 20 examples: held-out success {rates[0]:.2f} -> {max(rates):.2f}")  # noqa: T201
    assert rates[0] < 0.1
    assert max(rates) >= 0.9


def test_a_generation_that_is_killed_again_and_again_ends_with_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(0)
    with answering(ReadingModel()) as server:
        server.delay_s = 0.2  # long enough to be killed in the middle
        words = ["data", "from-docs", str(DOCS), "--num", "150", *sets(f"helper_model.base_url={server.url}")]
        assert command([*words, "--out", str(tmp_path / "whole.jsonl")]) == 0
        use_own_cache(tmp_path / "other", monkeypatch)
        asked = len(server.bodies)
        killed = 0
        for _ in range(KILLS):
            run = subprocess.Popen(
                [sys.executable, "-m", "astune", *words, "--out", str(tmp_path / "killed.jsonl")],
                stdout=subprocess.DEVNULL,
                stderr=(tmp_path / "errors").open("ab"),
            )
            try:
                run.wait(timeout=1.5 + draw.random() * 1.5)
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGKILL)
                killed += 1
            run.wait()
        assert command([*words, "--out", str(tmp_path / "killed.jsonl")]) == 0
        again = len(server.bodies) - asked
    assert killed >= KILLS // 2, (tmp_path / "errors").read_text()
    print(f"\nkilled {killed} times: {again} questions in all, {asked} without a kill")  # noqa: T201
    for end in ("", ".held_out"):
        assert (tmp_path / f"killed{end}.jsonl").read_bytes() == (tmp_path / f"whole{end}.jsonl").read_bytes()
    assert again <= asked + 8 * killed  # what was being asked when it was killed


def test_documents_of_every_format_are_read(tmp_path: Path) -> None:
    pytest.importorskip("markitdown", reason="make e2e-data installs it")
    from docx import Document  # pyright: ignore[reportMissingImports]
    from pptx import Presentation  # pyright: ignore[reportMissingImports]

    says = "The lighthouse of Westerhever was built in 1906 and is 41 meters high."
    word = Document()
    word.add_heading("Lighthouses", 1)
    word.add_paragraph(says)
    word.save(str(tmp_path / "a.docx"))
    slides = Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text = "Lighthouses"
    slide.placeholders[1].text = says
    slides.save(str(tmp_path / "b.pptx"))
    row = "<table><tr><th>place</th><th>meters</th></tr><tr><td>Westerhever</td><td>41</td></tr></table>"
    (tmp_path / "c.html").write_text(f"<html><body><h1>Lighthouses</h1><p>{says}</p>{row}</body></html>")
    (tmp_path / "d.pdf").write_bytes(pdf_with(says))
    (tmp_path / "broken.docx").write_bytes(b"PK\x03\x04 no document")
    documents, unread = read_documents([tmp_path])
    assert {each.name: re.sub(r"\s+", " ", each.text).count(says) for each in documents} == dict.fromkeys(
        ("a.docx", "b.pptx", "c.html", "d.pdf"), 1
    )
    page = next(each.text for each in documents if each.name == "c.html")
    assert "# Lighthouses" in page
    assert "| Westerhever | 41 |" in page
    assert [each.name for each in unread] == ["broken.docx"]


def pdf_with(text: str) -> bytes:
    """The smallest PDF with one line."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        " /Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body, places = "%PDF-1.4\n", []
    for number, each in enumerate(objects, start=1):
        places.append(len(body))
        body += f"{number} 0 obj\n{each}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    return f"{body}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()


def test_the_small_real_model_is_asked_in_the_right_form_on_our_own_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is far too small to write good tasks: what is shown is that forms are kept and nothing fails."""
    page = tmp_path / "page.md"
    page.write_text("# Lighthouses\n\n" + "The lighthouse of Westerhever was built in 1906 and is 41 meters high. " * 3)
    local = sets("helper_model.base_url=local", "helper_model.model=builtin:smollm2-135m")
    status = command(["data", "from-docs", str(page), "--out", str(tmp_path / "t.jsonl"), "--num", "1", *local])
    said = capsys.readouterr()
    assert status == 0 or re.search(r"drafts became a task|UnusableAnswer", " ".join(said.err.split())), said.err
