"""docker/*.Dockerfile, as far as they can be tested without Docker: what they copy, run and leave out is there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
HADOLINT = Path(sys.executable).parent / "hadolint"


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """(keyword, the rest) of every instruction, continued lines joined, comments left out."""
    lines = [line for line in dockerfile.read_text().splitlines() if line and not line.lstrip().startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in "\n".join(lines).replace("\\\n", " ").splitlines()]


def copied(rest: str) -> tuple[list[str], str]:
    """Sources and target of a COPY."""
    *sources, target = (word for word in rest.split() if not word.startswith("--"))
    return sources, target


def image_until(dockerfile: Path, command: str, folder: Path) -> Path:
    """The working folder of the image, as it is when `command` runs."""
    for keyword, rest in instructions(dockerfile):
        if keyword == "RUN" and command in rest:
            return folder
        if keyword == "COPY":
            sources, target = copied(rest)
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, folder / target)
                else:
                    to = folder / target / Path(source).name
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / source, to)
    raise AssertionError(f"{dockerfile.name} does not run {command}")


def test_both_engines_have_one():
    assert [path.name for path in DOCKERFILES] == ["trinity.Dockerfile", "verl.Dockerfile"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_it_copies_is_in_the_repository_and_not_ignored(dockerfile):
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    sources = [source for keyword, rest in instructions(dockerfile) if keyword == "COPY" for source in copied(rest)[0]]
    assert len(sources) > 5
    subprocess.run(["git", "ls-files", "--error-unmatch", *sources], cwd=ROOT, capture_output=True, check=True)
    for source in sources:
        assert not any(Path(source).match(pattern) for pattern in ignored), source


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_it_runs_is_shell_and_every_target_can_be_made_from_what_was_copied(dockerfile, tmp_path):
    runs = [rest for keyword, rest in instructions(dockerfile) if keyword == "RUN"]
    for run in runs:
        assert subprocess.run(["bash", "-n", "-c", run], capture_output=True, check=False).returncode == 0, run
    targets = [target for run in runs for target in re.findall(r"\bmake ([\w-]+)", run)]
    assert targets == ["install", f"env-{dockerfile.stem}"]
    for target in targets:
        folder = image_until(dockerfile, f"make {target}", tmp_path / target)
        plan = subprocess.run(
            ["make", "--dry-run", target], cwd=folder, capture_output=True, text=True, check=True
        ).stdout
        assert plan.strip()
        for script in (shlex.split(line)[0] for line in plan.splitlines()):
            assert (folder / script).stat().st_mode & 0o100, script


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_the_package_is_built_from_is_there_before_it_is_installed(dockerfile, tmp_path):
    folder = image_until(dockerfile, "make install", tmp_path / "image")
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    for name in (project["project"]["readme"], *project["project"]["license-files"], "vsdb.py"):
        assert (folder / name).is_file(), name
    assert (folder / "astune" / "__init__.py").is_file()  # make_peer_env.sh imports it


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_its_program_is_one_of_the_package_and_runs_as_nobody_special(dockerfile):
    last = dict(instructions(dockerfile))
    assert last["ENTRYPOINT"] == '["astune"]'
    assert "astune" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert last["USER"] == "1000"


def test_hadolint_has_nothing_to_say():
    if not HADOLINT.is_file():
        pytest.skip("hadolint is not installed: make install")
    done = subprocess.run([HADOLINT, *DOCKERFILES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_without_an_engine_make_says_so(tmp_path):
    for tool in ("make", "sh"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/nonexistent")
    done = subprocess.run(
        ["make", "docker-verl"], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "there is no Docker engine that answers" in done.stderr
