"""Clones of a fresh user, and the table of what each documented command did in them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fresh_clone import FreshClone, copied, programs_with
from letter_stage import ROOT, Table

NO_HUB = "http://127.0.0.1:9"


@pytest.fixture(scope="session")
def table() -> Iterator[Table]:
    """What each row did; written into the page that `ASTUNE_TABLE` names."""
    page = os.environ.get("ASTUNE_TABLE")
    table = Table(ROOT / page if page else None)
    yield table
    sys.stdout.write(f"\n{table.markdown()}\n")


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights for what is about commands, with the context that an experiment has where it names none."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path_factory.mktemp("tiny") / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    return folder


@pytest.fixture(scope="session")
def letter_model(request: pytest.FixtureRequest) -> Path:
    """What replaces MODEL_PATH: the real small model, or what `ASTUNE_LETTER_MODEL` names (`tiny`: random weights)."""
    named = os.environ.get("ASTUNE_LETTER_MODEL", "")
    if named and named != "tiny":
        return Path(named)
    return request.getfixturevalue("tiny_model" if named else "smol_folder")


@pytest.fixture(scope="session")
def clone_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], FreshClone]:
    """A fresh clone with an environment that has this version of AgentScope, made once."""
    made: dict[str, FreshClone] = {}

    def clone(agentscope: str) -> FreshClone:
        if agentscope not in made:
            programs = programs_with(agentscope)
            folder = copied(tmp_path_factory.mktemp(f"clone-{agentscope}-", numbered=False))
            caches = tmp_path_factory.mktemp("cache")
            for name in ("models", "kernels", "tokenizers"):
                (caches / name).symlink_to(Path("~/.cache/astune").expanduser() / name)
            variables = {"ASTUNE_CACHE": str(caches), "HF_ENDPOINT": NO_HUB, "COLUMNS": "160", "TERM": "xterm"}
            made[agentscope] = FreshClone(folder, programs, variables)
        return made[agentscope]

    return clone


@pytest.fixture
def clone(clone_of: Callable[[str], FreshClone]) -> FreshClone:
    """For rows in which AgentScope's version makes no difference: with the environment that `make install` makes."""
    clone = clone_of("1.0.21")
    installed = {"PYTHONPATH": str(clone.folder)}  # there its commands are the clone's
    return replace(clone, programs=Path(sys.executable).parent, variables=clone.variables | installed)


@pytest.fixture
def with_appworld(appworld_python: Path, appworld_root: Path) -> Callable[[FreshClone], None]:
    """Put AppWorld's environment and a small world into a clone, as `.env` says it."""

    def prepare(clone: FreshClone) -> None:
        with socket.socket() as port:
            if port.connect_ex(("127.0.0.1", 8080)) == 0:
                pytest.skip("something listens on port 8080 already, where the documents have AppWorld's service")
        environment = clone.folder / ".venv-appworld"
        if not environment.exists():
            environment.symlink_to(appworld_python.parents[1])
        (clone.folder / ".env").write_text(
            f"APPWORLD_PATH={appworld_root}\nAPPWORLD_ACTIVATION=source .venv-appworld/bin/activate\n"
        )

    return prepare
