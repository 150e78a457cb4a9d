"""Files of an episode's shell, packed and unpacked by a Python of any version."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from astune.config.schema import SandboxConfig
from astune.sandbox import SandboxResult, shared_sandbox
from astune.schema import SandboxError
from astune.workflow.safe_tools import run_shell_command, tools_of_episode
from astune.workflow.workspace import Workspace

AS_PYTHON_3_14 = "import tarfile\ntarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)\n"
LATE = "(for i in 1 2 3 4 5 6 7 8 9; do echo late >&2; sleep 0.002; done) &"


@pytest.fixture
def _sandbox() -> None:
    try:
        asyncio.run(shared_sandbox(SandboxConfig()))
    except SandboxError as cause:
        pytest.skip(str(cause))


async def shell(*commands: str) -> list[str]:
    """Answers to the commands of one episode."""
    with tools_of_episode(SandboxConfig()) as use:
        answers = [await run_shell_command(command) for command in commands]
    assert use.failure is None
    return answers


def answer(returncode: int, stdout: str = "", stderr: str = "") -> str:
    return f"<returncode>{returncode}</returncode><stdout>{stdout}</stdout><stderr>{stderr}</stderr>"


def test_links_that_lead_out_stay_and_nothing_is_said_of_them(tmp_path: Path) -> None:
    workspace, results = Workspace(), list[SandboxResult]()
    for number, command in enumerate(("ln -s /etc/hostname link", "readlink link")):
        program, mark = workspace.program(command)
        folder = tmp_path / str(number)
        folder.mkdir()
        ended = subprocess.run(
            [sys.executable, "-c", AS_PYTHON_3_14 + program], cwd=folder, capture_output=True, text=True, check=False
        )
        results.append(workspace.keep(SandboxResult(ended.returncode, ended.stdout, ended.stderr, "exit"), mark))
    assert [(each.returncode, each.stdout, each.stderr) for each in results] == [
        (0, "", ""),
        (0, "/etc/hostname\n", ""),
    ]


@pytest.mark.usefixtures("_sandbox")
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("timeout -s KILL 0.2 sleep 3", 137),
        ("exit 137", 137),
        ("kill -9 $$", 137),
        ("exit 130", 130),
        ("exit 255", 255),
    ],
)
async def test_files_stay_with_every_status_and_only_the_sandbox_says_that_memory_ran_out(
    end: str, status: int
) -> None:
    ended, after = await shell(f"echo 1 > a; {end}", "cat a")
    assert ended.startswith(f"<returncode>{status}</returncode>")
    assert "MemoryError" not in ended
    assert after == answer(0, "1\n")


@pytest.mark.usefixtures("_sandbox")
async def test_what_cannot_be_read_is_named_and_the_rest_stays() -> None:
    """The sandbox's user owns the files and is not root, so that their modes hold."""
    shut, listed = await shell("mkdir d; touch a b d/x; chmod 000 a d; echo ok; exit 3", "ls; cat b")
    assert shut.startswith("<returncode>3</returncode><stdout>ok\n</stdout>")
    assert "./a: not kept: Permission denied\n" in shut
    assert "./d: not kept: Permission denied\n" in shut
    assert "Traceback" not in shut
    assert listed.startswith(answer(0, "b\nd\n").partition("<stderr>")[0])


@pytest.mark.usefixtures("_sandbox")
async def test_files_stay_while_a_process_in_the_background_writes_to_the_same_stream() -> None:
    random = "head -c 500000 /dev/urandom > r; cksum r"
    (whole, after) = await shell(f"{LATE} {random}; {LATE} true", "cksum r")
    assert whole.partition("<stderr>")[0] == after.partition("<stderr>")[0]
    assert set(whole.partition("<stderr>")[2].removesuffix("</stderr>").split()) <= {"late"}


def test_pieces_of_files_are_read_from_between_the_lines_of_others_and_a_missing_end_is_said() -> None:
    workspace, program = Workspace(), Workspace().program
    _, mark = program("true")
    pieces = f"{mark}H4sI\n", f"{mark}AAAA==\n"
    read = workspace.keep(SandboxResult(0, "", f"own\n{pieces[0]}la{pieces[1]}te\n{mark}:137 2\n", "exit"), mark)
    assert (read.returncode, read.stderr) == (137, "own\nlate\n")
    assert "H4sIAAAA==" in workspace.program("true")[0]
    for stderr in (f"own\n{pieces[0]}{mark}:0 2\n", f"own\n{pieces[0]}"):
        read = workspace.keep(SandboxResult(1, "", stderr, "exit"), mark)
        assert read.stderr == "own\nthe files cannot be read: those from before this command are kept\n"
    stopped = workspace.keep(SandboxResult(-9, "", pieces[0], "timeout"), mark)
    assert (stopped.returncode, stopped.stderr) == (-9, "")
    assert "H4sIAAAA==" in workspace.program("true")[0]


@pytest.mark.usefixtures("_sandbox")
async def test_a_command_that_is_no_argument_runs_or_is_refused_in_a_line() -> None:
    long, counted, *refused = await shell(
        "cat <<EOF > big\n" + "x" * 140_000 + "\nEOF\nexit 4", "wc -c < big", "echo a\0b", "echo \ud800"
    )
    assert (long, counted) == (answer(4), answer(0, "140001\n"))
    assert refused == [
        answer(-1, stderr=f"ValueError: the command holds {what}, which no shell accepts")
        for what in ("a NUL character", "half of a surrogate pair")
    ]
