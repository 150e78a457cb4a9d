"""`astune view` and its older name, as processes: what they say, what they refuse, and how they end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx
import pytest
from astune_command import ROOT, interrupted_at, start
from astune_command import astune as run_astune
from terminal import on_a_terminal, read_until

from astune.runs import RunDirectory, resolve_run

sys.path.append(str(ROOT / "tests" / "viewer"))
from viewer_stage import make_episode, write_run

TOKEN = "ASTUNE_VIEW_TOKEN"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with two runs."""
    for number in range(2):
        write_run(tmp_path / "launcher_record", [make_episode(number)])
    return tmp_path


@contextmanager
def viewing(
    folder: Path, *arguments: str, opens: bool = False, **variables: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that a viewer prints, on a free port; it is ended with Ctrl-C, which is no failure."""
    opening = "--open" if opens else "--no-open"
    process = start(folder, "view", *arguments, "--port", "0", opening, **variables)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found is not None, line + process.communicate()[1]
    try:
        yield found[0], process
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, ""), out + err


def ask(url: str) -> httpx.Response:
    return httpx.get(url, trust_env=False, timeout=60)


@pytest.mark.slow
def test_without_a_path_the_record_here_is_shown(folder):
    with viewing(folder) as (url, _):
        opened = ask(f"{url}api/open").json()
        assert (opened["root"], opened["level"]) == (str((folder / "launcher_record").resolve()), "record")
        assert len(ask(f"{url}api/runs").json()) == 2
        assert url.startswith("http://127.0.0.1:")


@pytest.mark.slow
def test_where_nothing_was_run_yet_the_list_is_empty(tmp_path):
    with viewing(tmp_path) as (url, _):
        assert ask(f"{url}api/runs").json() == []


@pytest.mark.slow
@pytest.mark.parametrize("below", ["demo", "{run}", "{run}/rollout"])
def test_a_path_may_be_at_any_level(folder, below):
    run = resolve_run(folder / "launcher_record")
    with viewing(folder, f"launcher_record/{below.replace('{run}', f'demo/{run.name}')}") as (url, _):
        assert ask(f"{url}api/open").json()["level"] == ("experiment" if below == "demo" else "run")


@pytest.mark.slow
def test_an_episode_is_what_the_page_opens_with(folder):
    run = resolve_run(folder / "launcher_record")
    with RunDirectory.open(run).episodes() as episodes:
        first = episodes.list()[0].episode_id
    with viewing(folder, str(run), "--episode", first) as (url, _):
        assert url.endswith(f"/#run=&id={first}")


@pytest.mark.slow
def test_where_others_can_reach_it_a_token_is_required(folder):
    with viewing(folder, "--host", "0.0.0.0") as (url, _):
        page, _, token = url.partition("?token=")
        here = re.sub(r"//[^:/]+", "//127.0.0.1", page)
        assert len(token) >= 32
        assert ask(f"{here}api/runs").status_code == 401
        assert ask(f"{here}api/runs?token={token}").status_code == 200


@pytest.mark.slow
def test_a_token_of_ones_own_is_asked_for_and_not_printed(folder):
    with viewing(folder, **{TOKEN: "my own/secret"}) as (url, _):
        assert "secret" not in url
        assert ask(f"{url}api/runs").status_code == 401
        assert ask(f"{url}api/runs?token=my+own/secret").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("own", ["", "my own/secret"])
def test_no_token_stands_among_the_arguments_of_the_browser_that_is_opened(folder, own):
    browser, opened = folder / "browser", folder / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{opened}"\n')
    browser.chmod(0o700)
    with viewing(folder, "--host", "0.0.0.0", opens=True, BROWSER=f"{browser} %s", **{TOKEN: own}) as (url, _):
        port = urlsplit(url).port
        assert ask(f"http://127.0.0.1:{port}/healthz").status_code == 200, "it answers once the browser was opened"
        page = Path(url2pathname(urlsplit(opened.read_text()).path))
        found = re.fullmatch(r'<meta .* url=(http\S+\?token=\S+)">', page.read_text())
        assert found is not None
        assert found[1].startswith(url)
        assert ask(re.sub(r"//[^/]+/", f"//127.0.0.1:{port}/api/runs", found[1])).status_code == 200
        assert page.parent.stat().st_mode & 0o077 == 0
    assert not page.exists()


def test_a_port_that_is_taken_names_who_has_it_and_the_fix(astune, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, err = astune("view", "--port", str(port))
    assert status == 2
    assert f"127.0.0.1:{port} cannot be listened on: Address already in use" in err
    assert f"--port; it is held by process {os.getpid()}" in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["view", "nowhere"], "there is no folder nowhere"),
        (["view", "/dev/null"], "/dev/null is a file"),
        (["view", "--host", "203.0.113.7"], "cannot be listened on"),
        (["view", "--episode", "x", "--episode", "y"], "several --episode go with --export"),
        (["view", "--episode", "nobody"], "nobody"),
        (["view", "nowhere", "--export", "report.html"], "no run found in nowhere"),
        (["view", "launcher_record", "--export", "report.html", "--episode", "nobody"], "no such episode"),
        (["view", "--export", "nowhere/report.html"], "writing nowhere/report.html"),
    ],
)
def test_a_mistake_is_one_clear_error(astune, folder, monkeypatch, arguments, says):
    monkeypatch.chdir(folder)
    status, _, err = astune(*arguments)
    assert status in (1, 2)
    assert says in " ".join(err.split())
    assert "Traceback" not in err


def test_a_report_of_the_newest_run_is_written(astune, folder, monkeypatch):
    monkeypatch.chdir(folder)
    run = resolve_run(folder / "launcher_record")
    with RunDirectory.open(run).episodes() as reader:
        episode_id = reader.list()[0].episode_id
    status, out, err = astune("view", "launcher_record", "--export", "report.html", "--episode", episode_id)
    assert (status, err) == (0, "")
    assert out.splitlines()[1].startswith(f"report.html: demo/{run.name}, 1 episode, ")
    assert episode_id in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("launcher_record", "newest run in launcher_record, {run}; of another: astune view RUN --export report.html"),
        ("demo", "newest run in demo, {run}; of another: astune view RUN --export report.html"),
        ("launcher_record/{run}/rollout", "run {run}"),
        ("{run}", "run {run}"),
    ],
)
def test_which_run_a_report_is_of_is_said_before_it_is_made(astune, folder, monkeypatch, path, says):
    monkeypatch.chdir(folder)
    run = f"demo/{resolve_run(folder / 'launcher_record').name}"
    status, out, _ = astune("view", path.format(run=run), "--export", "report.html", "--episode", "nobody")
    assert (status, out) == (1, f"report of the {says.format(run=run)}\n")


@pytest.mark.slow
def test_the_older_name_is_the_same_command(folder):
    program = ("-c", "from astune.cli import beast_logger_go; beast_logger_go()")
    process = start(folder, "--port", "0", "--no-open", before=program)
    assert process.stdout is not None
    url = re.search(r"http://\S+", process.stdout.readline())
    assert url is not None
    assert len(ask(f"{url[0]}api/runs").json()) == 2
    process.terminate()
    process.communicate(timeout=30)


@pytest.mark.slow
def test_a_run_with_its_viewer_is_seen_while_it_goes_on(tmp_path, tiny_folder):
    """The viewer's page answers during the run, and its death does not end the run."""
    values = {
        "model.path": tiny_folder,
        "trainer.total_steps": 600,
        "trainer.tasks_per_step": 2,
        "rollout.num_repeat": 2,
        "trainer.validation.max_tasks": 2,
        "rollout.max_response_length_in_one_turn": 8,
    }
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    conf = str(ROOT / "tutorial" / "example_calculator" / "calculator.yaml")
    process = start(tmp_path, "--conf", conf, "--with-logview", *settings)
    lines, rest, err = interrupted_at(process, "step 2/600")
    said = "".join(lines) + rest + err
    assert re.search(r"companion logview: process \d+, http://127.0.0.1:8181/ answers after", said), said


@pytest.fixture
def debugging(tiny_folder) -> tuple[str, ...]:
    """A debug run of one task with a viewer."""
    values = {
        "model.path": tiny_folder,
        "debug.debug_first_n_tasks": 1,
        "rollout.max_response_length_in_one_turn": 8,
    }
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    conf = str(ROOT / "tutorial" / "example_calculator" / "calculator.yaml")
    return ("--conf", conf, "--backbone", "debug", "--with-logview", *settings)


@pytest.mark.slow
def test_after_a_debug_run_on_a_terminal_the_viewer_stays_until_ctrl_c(tmp_path, debugging):
    with on_a_terminal(tmp_path, *debugging) as (process, terminal):
        said = read_until(terminal, "log viewer until Ctrl-C: http://127.0.0.1:8181/#run=")
        assert "first answer" in said
        assert RunDirectory.open(resolve_run(tmp_path / "launcher_record")).info().status == "finished"
        assert len(ask("http://127.0.0.1:8181/api/runs").json()) == 1
        os.write(terminal, b"\x03")
        assert process.wait(30) == 0
    with pytest.raises(httpx.ConnectError):
        ask("http://127.0.0.1:8181/api/runs")


@pytest.mark.slow
def test_after_a_debug_run_elsewhere_the_last_line_opens_its_episode(tmp_path, debugging):
    last = run_astune(tmp_path, *debugging).splitlines()[-1].split()
    assert last[:2] == ["astune", "view"]
    with viewing(tmp_path, *last[2:]) as (url, _):
        assert url.endswith(f"/#run=&id={last[-1]}")


@pytest.mark.slow
def test_the_installed_commands_are_there():
    scripts = (ROOT / "pyproject.toml").read_text()
    assert 'beast_logger_go = "astune.cli:beast_logger_go"' in scripts
    assert "http://127.0.0.1:8181" in run_astune(ROOT, "view", "--help") or "8181" in run_astune(ROOT, "view", "--help")
