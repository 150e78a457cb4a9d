"""What a start keeps, so that it can be said later what exactly ran."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from astune.launcher import back_up, config_path_of
from astune.launcher.secrets import masked
from astune.schema import RunStoreError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's repository with an agent, a helper beside it and an uncommitted change."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    (folder / ".gitignore").write_text("__pycache__/\n")
    (folder / "agent.yaml").write_text("astune: {}  # mine\n")
    (folder / "backed_up_helper.py").write_text("VALUE = 1\n")
    (folder / "backed_up_agent.py").write_text("from backed_up_helper import VALUE\nclass Agent: ...\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], cwd=folder, check=True)
    (folder / "backed_up_helper.py").write_text("VALUE = 2\n")
    yield folder
    for name in ("backed_up_agent", "backed_up_helper"):
        sys.modules.pop(name, None)


def start(project: Path, folder: Path) -> Path:
    from backed_up_agent import Agent

    return back_up(
        folder,
        config_path=Path("agent.yaml"),
        resolved="astune: {seed: 0}\n",
        classes=[Agent],
        command=["astune", "--conf", "agent.yaml"],
    )


def test_a_backup_holds_configuration_sources_versions_and_git_state(project, tmp_path):
    backup = start(project, tmp_path / "backup")
    assert (backup / "agent.yaml").read_text() == "astune: {}  # mine\n"
    assert (backup / "resolved.yaml").read_text() == "astune: {seed: 0}\n"
    assert "class Agent" in (backup / "sources" / "project" / "backed_up_agent.py").read_text()
    assert (backup / "sources" / "project" / "backed_up_helper.py").read_text() == "VALUE = 2\n"
    assert any(line.startswith("pydantic==") for line in (backup / "packages.txt").read_text().splitlines())
    git = json.loads((backup / "git.json").read_text())
    assert len(git["commit"]) == 40
    assert git["changed"] == [" M backed_up_helper.py"]
    assert "+VALUE = 2" in (backup / "git.patch").read_text()
    manifest = json.loads((backup / "manifest.json").read_text())
    assert manifest["command"] == ["astune", "--conf", "agent.yaml"]
    assert config_path_of(backup) == project / "agent.yaml"


def test_a_package_is_kept_with_the_modules_that_were_loaded_from_it(project, tmp_path):
    for name, text in {
        "backed_up_package/__init__.py": "",
        "backed_up_package/tools/__init__.py": "",
        "backed_up_package/tools/add.py": "VALUE = 3\n",
        "backed_up_package/agents/__init__.py": "",
        "backed_up_package/agents/main.py": "from backed_up_package.tools.add import VALUE\nclass Agent: ...\n",
        "backed_up_package/agents/unused.py": "raise RuntimeError\n",
    }.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    agent = importlib.import_module("backed_up_package.agents.main").Agent
    backup = back_up(tmp_path / "backup", config_path=None, resolved="", classes=[agent], command=[])
    for name in [name for name in sys.modules if name.startswith("backed_up_package")]:
        del sys.modules[name]
    sources = backup / "sources"
    assert (sources / "backed_up_package" / "tools" / "add.py").read_text() == "VALUE = 3\n"
    assert {path.name for path in sources.rglob("*.py")} == {"__init__.py", "add.py", "main.py"}


def test_a_resumed_run_keeps_its_first_backup(project, tmp_path):
    first = start(project, tmp_path / "backup")
    (project / "agent.yaml").write_text("astune: {}  # changed\n")
    second = start(project, tmp_path / "backup")
    assert second.parent == first
    assert "mine" in (first / "agent.yaml").read_text()
    assert "changed" in (second / "agent.yaml").read_text()


@pytest.mark.slow
def test_a_folder_without_git_is_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    backup = back_up(tmp_path / "b", config_path=None, resolved="", classes=[Path], command=[])
    git = json.loads((backup / "git.json").read_text())
    assert git["commit"] is None
    assert "not a git repository" in git["reason"]
    assert config_path_of(backup) is None


def test_a_backup_that_cannot_be_written_is_an_error_with_its_cause(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunStoreError, match="could not be written"):
        back_up(tmp_path / "file" / "b", config_path=None, resolved="", classes=[], command=[])


def test_a_backup_is_its_owners_alone_and_holds_no_key_of_the_command_line(tmp_path: Path) -> None:
    command = [
        *("astune", "--conf", "a.yaml", "--set", "task_judge.params.api_key=sk-1", "--token", "abc"),
        *("--set", "helper.api_key_env=MY_KEY", "--set", "rollout.max_tokens=5"),
    ]
    made = back_up(tmp_path / "backup", config_path=None, resolved="", classes=[], command=command)
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700
    told = json.loads((made / "manifest.json").read_text())["command"]
    assert told == [
        *("astune", "--conf", "a.yaml", "--set", "task_judge.params.api_key=***", "--token", "***"),
        *("--set", "helper.api_key_env=MY_KEY", "--set", "rollout.max_tokens=5"),
    ]


KEYS = {
    'OPENAI_API_KEY = "sk-proj-0123456789abcdefghij"': 'OPENAI_API_KEY = "***"',
    "    api_key: correct-horse-battery": "    api_key: ***",
    "DB_PASSWORD=hunter22hunter22": "DB_PASSWORD=***",
    'headers = {"Authorization": "Bearer hf_ABCDEFGHIJKLMNOPQRSTUV"}': 'headers = {"Authorization": "Bearer ***"}',
    "token: 9f86d081884c7d659a2feaa0c55ad015": "token: ***",
    "url = 'https://me:pass@host/x'": "url = 'https://***@host/x'",
    **dict.fromkeys(
        [
            "token = tokenizer.decode(ids)",
            'key = "main_query"',
            "max_tokens = 4096",
            "api_key_env: OPENAI_API_KEY",
            'api_key=os.environ["OPENAI_API_KEY"]',
            'STOP_TOKEN = "<|im_end|>"',
            "password = read_password(prompt)",
        ]
    ),
}


@pytest.mark.parametrize("line", KEYS)
def test_what_looks_like_a_key_is_masked_and_code_is_not(line: str) -> None:
    text = f"+{line}\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n".encode()
    shown = masked(text).decode()
    assert shown.splitlines()[0] == f"+{KEYS[line] or line}"
    assert "MIIE" not in shown


def test_the_patch_of_a_repository_has_no_keys_and_no_key_files(project: Path, tmp_path: Path) -> None:
    for name in ("notes.txt", ".env", "deep/.env.local", "server.pem"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("before\n")
    for words in (["add", "-Af"], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "more"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    for name in ("notes.txt", ".env", "deep/.env.local", "server.pem"):
        (project / name).write_text("changed\nTOKEN=0123456789abcdef0123\n")
    patch = (start(project, tmp_path / "backup") / "git.patch").read_text()
    assert "+changed\n+TOKEN=***" in patch
    assert "0123456789abcdef" not in patch
    assert "before" in patch
    assert not any(name in patch for name in (".env", "server.pem"))
