"""What a sandboxed agent program must not be able to do, and what it needs to work.

Each attack prints `REACHED ...` where it got through; what it prints otherwise shows that it was tried.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from attempts import ATTEMPT

from astune.processes.program import ProgramEnd
from astune.sandbox.inside.confine import PROGRAM_PROCESSES
from astune.sandbox.jail import Jail
from astune.schema import SandboxError
from astune.workflow.program import run_once, variables_of

KEY = "astune-key-of-this-episode"
MEMORY_MB = 256


class _Model(BaseHTTPRequestHandler):
    """Answers who asks with the key."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"the model, asked with {self.headers['authorization']}".encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """The URL of a server on this machine's loopback interface."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def jail() -> Jail:
    jail = Jail([], MEMORY_MB)
    try:
        jail.try_out()
    except SandboxError as cause:
        pytest.skip(f"this machine has no {cause.message}")
    return jail


Run = Callable[..., ProgramEnd]


@pytest.fixture
def run(jail: Jail, model: str) -> Run:
    """Run a command, or Python code, in the jail."""

    def run(*command: str, code: str = "", memory_mb: int = MEMORY_MB) -> ProgramEnd:
        words = command or (sys.executable, "-c", ATTEMPT + code)
        memory = memory_mb * 2**20
        return asyncio.run(run_once(words, {"task_id": "t"}, variables_of(model, KEY, "m"), memory=memory, jail=jail))

    return run


def attack(run: Run, code: str) -> ProgramEnd:
    """Run an attack that must get nowhere, and must have been tried."""
    ended = run(code=code)
    assert "REACHED" not in ended.stdout, ended
    assert "refused" in ended.stdout, ended
    return ended


def test_a_program_reaches_its_model_and_finds_its_task(run: Run) -> None:
    ended = run(
        code="""
import json, urllib.request
asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"], headers={"Authorization": os.environ["OPENAI_API_KEY"]})
print(urllib.request.urlopen(asked).read().decode())
print(json.load(sys.stdin) == json.load(open(os.environ["ASTUNE_TASK"])), os.listdir("."))
temporary = os.environ["TMPDIR"] if sys.prefix.startswith("/tmp/") else "/tmp"  # the interpreter's folder is read-only
for path in ("mine", temporary + "/too", os.path.expanduser("~/too2")):
    open(path, "w").write("x")
import getpass, multiprocessing, pwd
print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name, multiprocessing.Lock())
sys.exit(3)
"""
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [
        f"the model, asked with {KEY}",
        "True []",
        "sandbox sandbox <Lock(owner=None)>",
    ]
    assert ended.status == 3


def test_nothing_else_on_the_network_is_reached(run: Run, model: str) -> None:
    name = uuid.uuid4().hex
    port = int(model.rpartition(":")[2].removesuffix("/v1"))
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_server(("127.0.0.2", port)) as same_port,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind(("127.0.0.1", 0))
        abstract.bind(f"\0{name}")
        abstract.listen()
        attack(
            run,
            f"""
def udp(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.send(b"x")
        sender.send(b"x")  # the first one was refused
for host in ("127.0.0.1", "localhost", "::1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "1.1.1.1", "8.8.8.8"):
    attempt(host, lambda: socket.create_connection((host, {other.getsockname()[1]}), timeout=2))
for address in (("127.0.0.1", {udp.getsockname()[1]}), ("8.8.8.8", 53)):
    attempt("udp", lambda: udp(address))
attempt("another host at the gateway's port", lambda: socket.create_connection(("1.1.1.1", {port}), timeout=2))
attempt("names", lambda: socket.gethostbyname("example.org"))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0{name}"))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
attempt("interface", lambda: [name for _, name in socket.if_nameindex() if name != "lo"] or 1 / 0)
""",
        )
        for listening in (other, same_port, abstract):
            listening.setblocking(False)
            with pytest.raises(BlockingIOError):
                listening.accept()
        udp.setblocking(False)
        with pytest.raises(BlockingIOError):
            udp.recv(1)


def test_files_outside_are_neither_read_nor_changed(run: Run) -> None:
    answers = Path("/var/tmp") / f"answers-{uuid.uuid4().hex}.jsonl"  # where any user may read
    answers.write_text("the answer is 42")
    answers.chmod(0o666)
    hidden = {folder: sorted(os.listdir(folder)) for folder in ("/tmp", "/var", str(Path.home())) if os.listdir(folder)}
    repository = Path(__file__).parents[2]
    attack(
        run,
        f"""
import sysconfig
for path in ({str(answers)!r}, "/etc/shadow", "/etc/hosts", "/etc/ssh", "/proc/self/environ", "/proc/1/environ",
             "/proc/{os.getpid()}/environ", "/dev/mem", "/sys/kernel/mm", {str(repository / "pyproject.toml")!r},
             os.path.expanduser("~root/.ssh"), {__file__!r}):
    attempt(path, lambda: open(path, "rb").read(20) if not os.path.isdir(path) else os.listdir(path))
for path, hidden in {hidden!r}.items():
    shown = {{".pyenv", "work", "task.json", os.path.relpath(sys.prefix, path).split("/")[0]}}
    attempt(path, lambda: (set(os.listdir(path)) & set(hidden)) - shown or 1 / 0)
attempt("link", lambda: (os.symlink({str(answers)!r}, "a"), open("a").read()))
attempt("hard link", lambda: os.link({str(answers)!r}, "b"))
attempt("upwards", lambda: open("../../../.." + {str(answers)!r}).read())
attempt("chroot", lambda: os.chroot("."))
library = sysconfig.get_paths()["stdlib"]
for path in ("/", "/usr", "/usr/lib", "/dev", "/var/tmp", "/etc", library, sys.prefix):
    attempt(path, lambda: open(path + "/new", "w").write("x"))
    attempt(path, lambda: os.mkdir(path + "/folder"))
for path in ({str(answers)!r}, library + "/os.py", sys.executable, "/etc/passwd"):
    for mode in ("w", "a", "r+"):
        attempt(path, lambda: open(path, mode))
    attempt("unlink", lambda: os.unlink(path))
    attempt("chmod", lambda: os.chmod(path, 0o777))
""",
    )
    assert answers.read_text() == "the answer is 42"
    answers.unlink()


def test_a_named_file_is_shown_and_its_folder_is_not(model: str, jail: Jail, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import os; print(os.path.exists('answers.txt'), os.listdir(os.path.dirname(__file__)))"
    )
    (tmp_path / "answers.txt").write_text("42")
    (tmp_path / "agent.py").chmod(0o644)
    agent = str(tmp_path / "agent.py")
    shown = Jail([agent], MEMORY_MB)
    ended = asyncio.run(run_once([sys.executable, agent], {}, variables_of(model, KEY, "m"), jail=shown))
    assert ended.stdout == "False ['agent.py']\n", ended


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no /dev/shm")
def test_a_file_in_memory_is_shown_as_any_other(model: str, jail: Jail) -> None:
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm", suffix=".py") as agent:
        agent.write("print('started')")
        agent.flush()
        os.chmod(agent.name, 0o644)
        shown = Jail([agent.name], MEMORY_MB)
        ended = asyncio.run(run_once([sys.executable, agent.name], {}, variables_of(model, KEY, "m"), jail=shown))
    assert ended.stdout == "started\n", ended


def test_neither_the_environment_nor_descriptors_are_handed_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hunter2@host/db")
    ended = run(
        code="""
import json
opened = []
for number in range(200):
    try:
        os.fstat(number)
        opened.append(number)
    except OSError:
        pass
print(json.dumps([dict(os.environ), opened]))
"""
    )
    variables, opened = json.loads(ended.stdout)
    assert opened == [0, 1, 2]
    assert "hunter2" not in str(variables)
    own = {"ASTUNE_TASK", "ASTUNE_MODEL", "HOME", "TMPDIR", "PWD", "OLDPWD", "USER"}
    common = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"}
    assert {name for name in variables if not name.startswith(("OPENAI_", "ANTHROPIC_"))} <= own | common


def test_another_episodes_key_is_out_of_reach(run: Run, jail: Jail, model: str) -> None:
    """A second program plays an episode, with its key in its environment, and its processes are looked at."""
    other = subprocess.Popen(
        ["sleep", "60"], env={"OPENAI_API_KEY": "astune-key-of-another"}, user=65534 if os.geteuid() == 0 else None
    )
    try:
        attack(
            run,
            f"""
import signal
class Vec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
def syscall(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
x86 = os.uname().machine == "x86_64"
mine = Vec(ctypes.addressof(ctypes.create_string_buffer(64)), 64)
for process in ({other.pid}, {os.getpid()}, os.getppid(), 1):
    attempt("environ", lambda: open(f"/proc/{{process}}/environ").read())
    attempt("ptrace", lambda: syscall(101 if x86 else 117, 16, process, 0, 0))
    attempt("memory", lambda: syscall(310 if x86 else 270, process, ctypes.byref(mine), 1, ctypes.byref(mine), 1, 0))
for process in ({other.pid}, {os.getpid()}):
    attempt("signal", lambda: os.kill(process, signal.SIGKILL))
attempt("mount proc", lambda: 1 / (1 + libc.mount(b"proc", b"/scratch", b"proc", 0, None)))
attempt("namespace", lambda: 1 / (1 + libc.unshare(0x10000000)))
""",
        )
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_what_it_starts_ends_with_it(run: Run) -> None:
    mark = f"left-{uuid.uuid4().hex}"
    began = time.monotonic()
    ended = run(
        "/bin/sh", "-c", f"setsid sh -c 'while :; do sleep 5; done; : {mark}' >/dev/null 2>&1 & sleep 0.2; echo started"
    )
    assert ended.stdout == "started\n"
    assert time.monotonic() - began < 20
    assert not _named(mark)


def _named(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_memory_files_and_processes_are_bounded(run: Run) -> None:
    ended = run(code="import time\nkept = bytearray(600 << 20)\ntime.sleep(60)")
    assert ended.memory > MEMORY_MB << 20
    filled = run(
        code="""
import errno
try:
    with open("big", "wb") as one, open("big2", "wb") as two:
        while True:
            one.write(bytes(1 << 20)), two.write(bytes(1 << 20))
except OSError as cause:
    print(errno.errorcode[cause.errno])
"""
    )
    assert filled.stdout in ("ENOSPC\n", "EFBIG\n") or filled.memory
    bomb = run(
        code="""
children = 0
try:
    while children < 5000:
        if os.fork() == 0:
            os.execv("/bin/sleep", ["sleep", "60"])
        children += 1
except OSError:
    print(children)
""",
        memory_mb=4096,
    )
    assert 0 < int(bomb.stdout) < PROGRAM_PROCESSES


def test_a_server_of_its_own_and_its_children_work(run: Run) -> None:
    ended = run(
        code="""
import subprocess, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"), daemon=True).start()
print(socket.create_connection(server.getsockname()).recv(9))
print(subprocess.run(["sh", "-c", "echo $((6 * 7))"], capture_output=True, text=True).stdout)
"""
    )
    assert ended.stdout == "b'hello'\n42\n\n", ended


def test_its_end_is_told_as_a_shell_tells_it(run: Run) -> None:
    assert run("/bin/sh", "-c", "kill -SEGV $$").status == 128 + 11
    missing = run("/no/such/program")
    assert missing.status == 127
    assert "could not be started in the sandbox" in missing.stderr


WITHOUT_NAMESPACES = """
import sys
from pathlib import Path
from astune.config.schema import ProgramConfig
from astune.sandbox.inside import libc, seccomp
from astune.workflow.program import program_workflow
libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
seccomp.install(processes=True, network=True)  # as in a container, whose own filter allows no more
program_workflow(ProgramConfig(command=["/bin/sh", "-c", "touch " + sys.argv[1]], sandboxed=True))
"""


@pytest.mark.slow
def test_without_namespaces_no_program_is_started(tmp_path: Path) -> None:
    """Never unconfined: the error says what is missing, and how to go without."""
    made = tmp_path / "made"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NAMESPACES, str(made)], capture_output=True, text=True, check=False
    )
    assert "SandboxError: the sandbox for programs does not work on this machine: [Errno" in done.stderr
    assert "rollout.workflow.sandboxed=false" in done.stderr
    assert not made.exists()
