"""Limits and results: what ended the code, and what came of it, alike on every backend."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid

import numpy as np
import pytest
from waiting import eventually

from astune.sandbox import Sandbox, SandboxConfig
from astune.sandbox.base import wait_status
from astune.sandbox.inside import family
from astune.schema import SandboxError


def test_a_loop_ends_at_its_deadline_and_keeps_what_it_printed(any_box):
    for timeout_s in (0.5, 5, 15):  # until one is long enough to start in
        started = time.monotonic()
        result = any_box.run("print('begun')\nwhile True: pass", timeout_s=timeout_s)
        assert time.monotonic() - started < timeout_s + 10
        if result.stdout:
            break
    assert (result.ended_by, result.returncode, result.stdout) == ("timeout", -9, "begun\n")


def test_code_that_ignores_signals_ends_at_its_deadline_too(any_box):
    result = any_box.run(
        """
import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    time.sleep(60)
""",
        timeout_s=0.5,
    )
    assert result.ended_by == "timeout"


def test_too_much_memory_is_a_memory_error_that_code_may_catch(any_box):
    caught = any_box.run("try: bytearray(2 << 30)\nexcept MemoryError: print('caught')")
    assert (caught.ended_by, caught.stdout) == ("exit", "caught\n")
    uncaught = any_box.run("kept = []\nwhile True: kept.append(bytearray(1 << 20))")
    assert (uncaught.ended_by, uncaught.returncode) == ("memory", -9)
    assert "MemoryError" in uncaught.stderr


@pytest.mark.parametrize("backend", ["zygote", "zygote-landlock"])
def test_calls_of_a_sandbox_that_dies_fail_and_are_no_results(backend):
    """A verdict for what the sandbox itself did would be a reward of 0 for a failure of ours."""

    async def run() -> list[object]:
        sandbox = await Sandbox.start(SandboxConfig(), backend=backend)
        calls = [asyncio.ensure_future(sandbox.run("import time; time.sleep(20)")) for _ in range(3)]
        parent = sandbox._backend._process.pid
        async with asyncio.timeout(60):
            while len(family.below(parent)) < 1 + len(calls):  # noqa: ASYNC110 (there is no event to wait for)
                await asyncio.sleep(0.01)
        zygote, *_ = family.below(parent)
        os.kill(int(zygote), signal.SIGKILL)
        results = await asyncio.gather(*calls, return_exceptions=True)
        await sandbox.aclose()
        return results

    try:
        results = asyncio.run(run())
    except SandboxError as cause:
        pytest.skip(str(cause))
    assert all(isinstance(result, SandboxError) for result in results), results


def test_memory_is_bounded_for_all_processes_together(any_box):
    result = any_box.run(
        """
import os, time
for _ in range(6):
    try:
        if os.fork() == 0:
            kept = bytearray(os.urandom(1 << 20)) * 150
            time.sleep(60)
    except PermissionError:
        print("refused")
        raise SystemExit
time.sleep(60)
"""
    )
    if any_box.backend == "zygote-landlock":
        assert result.stdout == "refused\n"
    else:
        assert result.ended_by == "memory", result


def test_a_flood_of_output_is_stopped_and_cut(any_box):
    limit = any_box.sandbox.config.output_kb << 10
    for stream in ("stdout", "stderr"):
        result = any_box.run(f"import sys\nwhile True: sys.{stream}.write('x' * 1000)")
        assert (result.ended_by, result.returncode) == ("output", -9)
        assert 0 < len(result.stdout) + len(result.stderr) <= limit


def test_output_that_just_fits_is_whole(any_box):
    size = any_box.sandbox.config.output_kb << 10
    result = any_box.run(f"print('x' * {size - 1})")
    assert (result.ended_by, len(result.stdout)) == ("exit", size)


@pytest.mark.parametrize(
    ("code", "returncode", "stderr"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('words')", 1, "words\n"),
        ("import sys; sys.exit(True)", 1, ""),
        ("import os; os._exit(126)", 126, ""),
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("import os; os._exit(128)", 128, ""),
        ("import sys; sys.exit(200)", 200, ""),
        ("import sys; sys.exit(255)", 255, ""),
    ],
)
def test_the_exit_status_is_an_interpreters(any_box, code, returncode, stderr):
    result = any_box.run(code)
    assert (result.returncode, result.stderr, result.ended_by) == (returncode, stderr, "exit")


@pytest.mark.parametrize("status", [130, 137, 192])
def test_a_status_that_a_shell_gives_to_signals_is_an_exit_status(any_box, status):
    if any_box.backend == "bubblewrap":
        pytest.skip("bubblewrap reports signals so, and nothing else")
    result = any_box.run(f"import sys; sys.exit({status})")
    assert (result.returncode, result.ended_by) == (status, "exit")


def test_only_a_program_that_reports_as_shells_do_has_signals_above_128():
    reported = [0, 3, 128, 130, 137, 192, 193, 200, 255, -9, -11]
    bubblewrap = [os.waitstatus_to_exitcode(wait_status(each, as_shells=True)) for each in reported]
    assert bubblewrap == [0, 3, 128, -2, -9, -64, 193, 200, 255, -9, -11]
    assert [os.waitstatus_to_exitcode(wait_status(each, as_shells=False)) for each in reported] == reported


def test_a_traceback_shows_the_code_and_nothing_of_the_sandbox(any_box):
    result = any_box.run("def divide(x):\n    return 1 / x\n\ndivide(0)\n")
    assert result.returncode == 1
    assert "return 1 / x" in result.stderr
    assert result.stderr.startswith('Traceback (most recent call last):\n  File "main.py", line 4, in <module>\n')
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "SyntaxError" in any_box.run("def broken(:").stderr
    assert "KeyboardInterrupt" in any_box.run("raise KeyboardInterrupt").stderr


def test_an_exception_whose_text_fails_is_still_a_result(any_box):
    result = any_box.run("class Odd(Exception):\n    def __str__(self): raise Odd\n\nraise Odd")
    assert (result.returncode, result.ended_by) == (1, "exit")
    assert "Odd" in result.stderr


def test_bytes_that_are_no_text_do_no_harm(any_box):
    result = any_box.run("import os; os.write(1, bytes([0, 200, 255]) + 'é'.encode()); print('\\udcff' == '')")
    assert result.stdout == "\0\ufffd\ufffdéFalse\n"
    assert any_box.run("print('你好')").stdout == "你好\n"
    assert "UnicodeEncodeError" in any_box.run("print('\ud800')").stderr


def test_deep_recursion_and_a_segfault_are_results(any_box):
    deep = any_box.run("def f(): f()\nf()")
    assert deep.returncode == 1
    assert "RecursionError" in deep.stderr
    fault = any_box.run("import ctypes; print('before'); ctypes.string_at(0)")
    assert (fault.ended_by, fault.returncode, fault.stdout) == ("killed", -signal.SIGSEGV, "before\n")
    assert any_box.run("import os; os.abort()").ended_by == "killed"


def test_code_is_a_program_with_its_own_main_module(any_box):
    result = any_box.run(
        """
import atexit, pickle, sys, threading
class Point: pass
assert __name__ == "__main__" and pickle.loads(pickle.dumps(Point)) is Point
atexit.register(print, "goodbye")
print(sys.stdin.read() == "", sys.argv, end="")
"""
    )
    assert result.stdout == "True ['main.py']goodbye\n", result.stderr


def test_what_ordinary_code_uses_is_there(any_box):
    result = any_box.run(
        """
import asyncio, decimal, json, os, random, shutil, sqlite3, tempfile
async def main():
    await asyncio.sleep(0)
    return "async"
print(asyncio.run(main()))
with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
    file.write("text")
shutil.copyfile(file.name, "copy.txt")
print(open("copy.txt").read(), os.path.exists(os.path.expanduser("~/copy.txt")))
print(sqlite3.connect("data.db").execute("select 6 * 7").fetchone()[0])
"""
    )
    assert result.stdout == "async\ntext True\n42\n", result.stderr


@pytest.mark.skipif(
    not np.__file__.startswith((sys.prefix, sys.base_prefix)),
    reason="numpy is not among this interpreter's own packages",
)
def test_installed_packages_can_be_imported(any_box):
    result = any_box.run("import numpy; print(numpy.ones((200, 200)) @ numpy.ones(200) @ numpy.ones(200))")
    assert result.stdout == "40000.0\n", result.stderr


def test_threads_and_programs_run_where_processes_can_be_ended(any_box):
    if any_box.backend == "zygote-landlock":
        pytest.skip("zygote-landlock starts neither processes nor threads")
    result = any_box.run(
        """
import concurrent.futures, shutil, subprocess
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(abs, range(-4, 0))))
print(subprocess.run(["sh", "-c", "echo shell; exit 5"], capture_output=True, text=True))
shutil.copy2(shutil.which("true"), "copy")
"""
    )
    assert result.returncode == 0, result.stderr
    assert "10\n" in result.stdout
    assert "returncode=5, stdout='shell\\n'" in result.stdout


def test_random_numbers_differ_between_calls(any_box):
    assert len({any_box.run("import random; print(random.random())").stdout for _ in range(3)}) == 3


async def test_many_calls_at_once_do_not_meet(any_box):
    code = """
import os, time
open("{0}", "w").close()
time.sleep(0.2)
print({0}, os.listdir("."))
"""
    results = await asyncio.gather(*(any_box.sandbox.run(code.format(number)) for number in range(12)))
    assert [result.stdout for result in results] == [f"{number} ['{number}']\n" for number in range(12)]


def test_a_call_that_is_given_up_ends(any_box, running):
    marker = f"given-up-{uuid.uuid4().hex}"

    async def give_up():
        code = f"import os; os.execv('/bin/sh', ['sh', '-c', 'while :; do sleep 60 & wait; done', {marker!r}])"
        if any_box.backend == "zygote-landlock":  # a shell needs processes
            code = f"import os, sys; os.execv(sys.executable, ['x', '-c', 'import time; time.sleep(60)', {marker!r}])"
        task = asyncio.ensure_future(any_box.sandbox.run(code))
        await asyncio.to_thread(eventually, lambda: running(marker), "the start of the code")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    eventually(lambda: not running(marker), "the end of the call")


@pytest.mark.slow
def test_a_parent_killed_outright_leaves_nothing_behind(any_box, running, tmp_path):
    marker = f"orphan-{uuid.uuid4().hex}"
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio
        from astune.sandbox import Sandbox, SandboxConfig
        async def main():
            async with Sandbox.open(SandboxConfig(allow_unsafe=True), backend={any_box.backend!r}) as sandbox:
                await sandbox.run("import os, sys; os.execv(sys.executable, "
                                  "['x', '-c', 'import time; time.sleep(20)', {marker!r}])")
        asyncio.run(main())
        """)
    )
    parent = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE)
    try:
        eventually(lambda: len(running(marker)) > 0 or parent.poll() is not None, "the start of the code")
        assert parent.poll() is None, parent.stderr and parent.stderr.read()
    finally:
        parent.kill()
        parent.wait()
    if any_box.backend == "rlimits":
        for process in running(marker):
            os.kill(process, signal.SIGKILL)
        pytest.skip("rlimits: nothing ends a process whose parent was killed")
    eventually(lambda: not running(marker), "the end of the code")


async def test_a_zygote_that_was_killed_is_replaced():
    try:
        sandbox = await Sandbox.start(backend="zygote")
    except SandboxError as cause:
        pytest.skip(str(cause))
    try:
        parent = sandbox._backend._process.pid
        for process in (parent, *map(int, family.below(parent))):  # those of other tests stay
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(SandboxError):  # the call that it dies under may fail, the next one may not
            await sandbox.run("pass")
        result = await sandbox.run("print('again')")
        assert result.stdout == "again\n"
    finally:
        await sandbox.aclose()


async def test_a_closed_sandbox_says_so():
    try:
        sandbox = await Sandbox.start(backend="zygote")
    except SandboxError as cause:
        pytest.skip(str(cause))
    await sandbox.aclose()
    with pytest.raises(SandboxError, match="the sandbox is closed"):
        await sandbox.run("pass")


async def test_where_nothing_works_the_error_names_the_fix(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxError, match=r"bwrap is not installed.*apt install bubblewrap.*allow_unsafe"):
        await Sandbox.start(backend="bubblewrap")


async def test_the_unsafe_backend_is_only_there_where_it_was_asked_for(caplog):
    with pytest.raises(SandboxError, match="allow_unsafe"):
        await Sandbox.start(backend="rlimits")
    async with Sandbox.open(SandboxConfig(allow_unsafe=True), backend="rlimits") as sandbox:
        assert (await sandbox.run("print(1)")).stdout == "1\n"
    assert "WITHOUT isolation" in caplog.text
    with pytest.raises(SandboxError, match="backends are zygote"):
        await Sandbox.start(backend="docker")
