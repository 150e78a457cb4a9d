"""The code on the documentation's pages: it parses, imports, is what its page says it is, and the README's trains."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from shown_files import PAGES, ROOT, Block, blocks, files_of, write_files

from astune.config import load_config
from astune.config.imports import import_class
from astune.env_service import Environment
from astune.runs import RunDirectory, resolve_run
from astune.task_judge import JudgeBase
from astune.task_reader import TaskReaderBase
from astune.workflow import Workflow

READMES = sorted(ROOT.glob("README*.md"))
BASES = (Workflow, JudgeBase, Environment, TaskReaderBase)

PYTHON = [block for page in PAGES for block in blocks(page, "python")]
YAML = [block for page in PAGES for block in blocks(page, "yaml")]
FILES = [(page, name) for page in PAGES for name in files_of(page) if name.endswith(".py")]


def place(block: Block) -> str:
    return f"{block.page.name}:{block.line}"


@pytest.mark.parametrize("block", PYTHON, ids=place)
def test_python_on_a_page_parses_and_takes_from_astune_only_what_is_there(block):
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("astune", "tutorial"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{place(block)}: {node.module} has no {alias.name}"


@pytest.mark.parametrize("block", YAML, ids=place)
def test_yaml_on_a_page_is_a_configuration_that_is_accepted(block, tmp_path):
    assert set(yaml.safe_load(block.text)) == {"astune"}, f"{place(block)}: show it from the root key on"
    file = tmp_path / "shown.yaml"
    file.write_text(block.text, encoding="utf-8")
    load_config(file)


@pytest.mark.parametrize(("page", "name"), FILES, ids=[f"{page.name}-{name}" for page, name in FILES])
def test_classes_of_a_shown_file_can_be_named_in_a_configuration(page, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    for node in ast.parse(files_of(page)[name]).body:
        bases = {base.id for base in getattr(node, "bases", []) if isinstance(base, ast.Name)}
        if isinstance(node, ast.ClassDef) and (
            base := next((b for b in BASES if b.__name__ in bases or "AgentScopeLearnProtocol" in bases), None)
        ):
            import_class(f"{name}->{node.name}", key="shown", base=base, base_dir=tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            assert path.exists(), f"{page.name} links to {target}"
            if anchor and path.suffix == ".md":
                assert anchor in anchors_of(path), f"{page.name} links to {target}"


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_both_readmes_show_the_same_files_apart_from_their_comments():
    first, *others = [{name: code_of(text) for name, text in files_of(page).items()} for page in READMES]
    assert first
    assert all(other == first for other in others)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "zh").glob("*.md")), ids=lambda page: page.name)
def test_a_chinese_page_shows_the_code_of_the_english_one(page):
    english = [code_of(block.text) for block in blocks(ROOT / "docs" / "en" / page.name)]
    assert [code_of(block.text) for block in blocks(page)] == english


def code_of(text: str) -> str:
    return "\n".join(line.partition("  #")[0].rstrip() for line in text.splitlines())


@pytest.mark.slow
def test_the_agent_of_the_readme_trains(smol_folder, tmp_path):
    """Its own files and commands, one step of the real model: tokens are trained, a model is saved."""
    write_files(ROOT / "README.md", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("make_tasks.py")
    train, held_out = ((tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("train", "held_out"))
    assert len(train) == 4 * len(held_out)
    assert not {json.loads(line)["main_query"] for line in train} & {
        json.loads(line)["main_query"] for line in held_out
    }
    fewer = ["trainer.total_steps=1", "trainer.validation.max_tasks=8", f"model.path={smol_folder}"]
    launcher = str(ROOT / "launcher.py")
    run(launcher, "--conf", "my_agent.yaml", *(word for value in fewer for word in ("--set", value)))

    folder = RunDirectory.open(resolve_run(tmp_path / "launcher_record"))
    assert folder.info().status == "finished"
    step = next(line.metrics for line in folder.metrics() if line.kind == "train")
    assert step["episodes/finished"] == 64
    assert step["balance/trained"] > 0
    latest = folder.checkpoints.latest()
    assert latest is not None
    assert (latest.model / "model.safetensors").is_file()
