"""The wheel holds everything, and installs into an empty environment with pip and with uv.

Torch is a large download: `make test` installs the core alone, `make e2e-install` everything, and runs the demo.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
SHORT = ("trainer.total_steps=1", "trainer.tasks_per_step=2", "trainer.validation.max_tasks=2")


def call(*command: str | Path, cwd: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would give a newcomer, with uncommitted changes to tracked and new files."""
    folder = tmp_path_factory.mktemp("newcomer") / "astune"
    listed = call("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    builder = tmp_path_factory.mktemp("builder") / "venv"
    call(sys.executable, "-m", "venv", builder, cwd=target)
    call(builder / "bin" / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", target, checkout, cwd=target)
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with uv alone in it, from PyPI."""
    folder = tmp_path_factory.mktemp("uv")
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    call(folder / "venv" / "bin" / "pip", "install", "--quiet", "uv", cwd=folder)
    (folder / "bin").mkdir()
    (folder / "bin" / "uv").symlink_to(folder / "venv" / "bin" / "uv")
    return folder / "bin"


def test_the_wheel_holds_code_tutorials_defaults_and_licence(wheel, checkout):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, inside in (("astune", ""), ("tutorial", "astune/shipped/")):
        for path in (checkout / folder).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                assert f"{inside}{path.relative_to(checkout)}" in names
    assert "astune/default_config/default.yaml" in names
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"astune", "vsdb.py"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def test_the_core_alone_installs_and_says_what_training_needs(wheel, tmp_path):
    call(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    constraints = ROOT / "requirements" / "constraints.txt"
    call("venv/bin/pip", "install", "--quiet", "--constraint", constraints, wheel, cwd=tmp_path)
    call("venv/bin/python", "-c", "import astune", cwd=tmp_path)
    assert "demo" in call("venv/bin/astune", "--help", cwd=tmp_path)
    assert "a whole number" in call("venv/bin/astune", "config", "explain", "rollout.num_repeat", cwd=tmp_path)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["venv/bin/astune", "demo"], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"pip install 'astune[agentscope] @ {wheel.as_uri()}'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_the_install_script_makes_an_environment_once(tool, checkout, uv):
    shutil.rmtree(checkout / ".venv", ignore_errors=True)
    environment = {"EXTRAS": ""}
    if tool == "uv":
        environment["PATH"] = f"{uv}:{os.environ['PATH']}"
    else:
        environment["NO_UV"] = "1"
    call("make", "install", cwd=checkout, **environment)
    assert call(".venv/bin/astune", "--version", cwd=checkout).startswith("astune ")
    assert (checkout / ".venv" / "bin" / "pip").exists() == (tool == "pip")
    made = (checkout / ".venv" / "astune-installed").stat().st_mtime_ns
    call("make", "install", cwd=checkout, **environment)
    assert (checkout / ".venv" / "astune-installed").stat().st_mtime_ns == made


@pytest.mark.e2e
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_a_newcomers_two_commands_work_in_an_empty_checkout(tool, checkout, uv):
    shutil.rmtree(checkout / ".venv", ignore_errors=True)
    environment = {"PATH": f"{uv}:{os.environ['PATH']}"} if tool == "uv" else {"NO_UV": "1"}
    call("make", "install", cwd=checkout, **environment)
    overrides = [word for each in SHORT for word in ("--set", each)]
    conf = "tutorial/example_calculator/calculator.yaml"
    out = call(".venv/bin/astune", "--conf", conf, *overrides, cwd=checkout)
    assert out.rstrip().splitlines()[-1].startswith("held-out success ")


@pytest.mark.e2e
def test_the_wheel_with_its_extras_runs_the_demo_in_an_empty_environment(wheel, tmp_path):
    call(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    constraints = ROOT / "requirements" / "constraints.txt"
    call("venv/bin/pip", "install", "-q", "-c", constraints, f"{wheel}[local,agentscope]", cwd=tmp_path)
    overrides = [word for each in SHORT for word in ("--set", each)]
    out = call("venv/bin/astune", "demo", *overrides, cwd=tmp_path)
    assert out.rstrip().splitlines()[-1].startswith("held-out success ")
    assert (tmp_path / "launcher_record" / "calculator").is_dir()
