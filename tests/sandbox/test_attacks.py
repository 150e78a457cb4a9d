"""What code must not be able to do, tried on each backend that the machine has.

Each attack prints `REACHED ...` where it got through; what it prints otherwise shows that it was tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import site
import socket
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from attempts import ATTEMPT
from waiting import eventually

from astune.sandbox.interpreter import readable_folders

ROOT = Path(__file__).parents[2]
PRELUDE = f"""{ATTEMPT}
def syscall(number, *arguments):
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""


def attack(box, code: str, timeout_s: float | None = None):
    """Run an attack that must get nowhere, and must have been tried."""
    result = box.run(PRELUDE + code, timeout_s)
    assert "REACHED" not in result.stdout, result
    assert "refused" in result.stdout, result
    return result


def test_no_network_can_be_reached(box):
    with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        udp.bind(("127.0.0.1", 0))
        attack(
            box,
            f"""
here, there = ("127.0.0.1", {tcp.getsockname()[1]}), ("127.0.0.1", {udp.getsockname()[1]})
attempt("tcp", lambda: socket.create_connection(here, timeout=2))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", there))
attempt("tcp6", lambda: socket.socket(socket.AF_INET6))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
attempt("listening", lambda: socket.create_server(("127.0.0.1", 0)))
""",
        )
        tcp.setblocking(False)
        udp.setblocking(False)
        with pytest.raises(BlockingIOError):
            tcp.accept()
        with pytest.raises(BlockingIOError):
            udp.recv(1)


def test_no_name_is_resolved(box):
    assert socket.getaddrinfo("localhost", 80)
    attack(
        box,
        """
attempt("localhost", lambda: socket.getaddrinfo("localhost", 80))
attempt("example.org", lambda: socket.getaddrinfo("example.org", 80))
attempt("gethostbyname", lambda: socket.gethostbyname("localhost"))
""",
    )


def test_no_unix_socket_can_be_reached(box, tmp_path):
    name = uuid.uuid4().hex
    path = f"/tmp/{name}.socket"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named,
    ):
        abstract.bind(f"\0{name}")
        named.bind(path)
        os.chmod(path, 0o777)
        attack(
            box,
            f"""
def by_pair(kind, address):
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    one.sendto(b"x", address)
for address in ("\\0{name}", {path!r}):
    attempt("socket", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", address))
    attempt("pair of datagrams", lambda: by_pair(socket.SOCK_DGRAM, address))
    attempt("pair of packets", lambda: by_pair(socket.SOCK_SEQPACKET, address))
    attempt("pair of streams", lambda: by_pair(socket.SOCK_STREAM, address))
    attempt("connecting a pair", lambda: socket.socketpair()[0].connect(address))
    attempt("binding a pair", lambda: socket.socketpair()[0].bind("\\0x" + address))
""",
        )
        for server in (abstract, named):
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.recv(1)
    os.unlink(path)


def test_files_outside_cannot_be_read(box, tmp_path):
    answers = Path("/tmp") / f"answers-{uuid.uuid4().hex}.jsonl"  # where any user may read
    answers.write_text("the answer is 42")
    answers.chmod(0o644)
    places = [
        str(answers),
        "/etc/passwd",
        "/etc/hosts",
        "/proc/self/environ",
        "/proc/1/environ",
        f"/proc/{os.getpid()}/environ",
        f"/proc/{os.getpid()}/mem",
        "/proc/self/maps",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/shm/x",
        "/sys/kernel/mm",
        str(Path(__file__)),
        str(Path(__file__).parents[2] / "pyproject.toml"),
        str(tmp_path),
    ]
    folders = [str(Path.home()), "/home", "/var", "/proc", "/sys", "/tmp", str(Path(__file__).parents[2])]
    shown = {part for folder in readable_folders() for part in Path(folder).parts}  # the way to the interpreter
    hidden = {folder: sorted(set(_names(folder)) - shown) for folder in folders}
    assert any(hidden.values())
    attack(
        box,
        f"""
for path in {places!r}:
    attempt(path, lambda: open(path, "rb").read(20))
for path, hidden in {hidden!r}.items():
    attempt(path, lambda: set(os.listdir(path)) & set(hidden) or 1 / 0)
attempt("link", lambda: (os.symlink({str(answers)!r}, "a"), open("a").read()))
attempt("hard link", lambda: os.link({str(answers)!r}, "b"))
attempt("path only", lambda: os.read(os.open({str(answers)!r}, os.O_PATH), 1))
attempt("upwards", lambda: open("../../.." + {str(answers)!r}).read())
attempt("chroot", lambda: os.chroot("."))
""",
    )
    assert answers.read_text() == "the answer is 42"
    answers.unlink()


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def test_nothing_can_be_changed_outside_of_the_scratch_folder(box):
    place = Path("/tmp") / f"public-{uuid.uuid4().hex}"
    place.mkdir()
    place.chmod(0o777)
    (place / "file").write_text("before")
    (place / "file").chmod(0o666)
    before = (place / "file").stat()
    attack(
        box,
        f"""
import sys, sysconfig
library = sysconfig.get_paths()["stdlib"]
for path in ({str(place)!r}, "/", "/usr", "/usr/lib", "/dev", "/var/tmp", "/etc", library, sys.prefix, "/dev/shm"):
    attempt(path, lambda: open(path + "/new", "w").write("x"))
    attempt(path, lambda: os.mkdir(path + "/folder"))
for path in ({str(place / "file")!r}, library + "/os.py", sys.executable):
    for mode in ("w", "a", "r+"):
        attempt(path, lambda: open(path, mode))
    attempt("unlink", lambda: os.unlink(path))
    attempt("rename", lambda: os.rename(path, "mine"))
    attempt("truncate", lambda: os.truncate(path, 0))
    attempt("chmod", lambda: os.chmod(path, 0o777))
    attempt("fchmod", lambda: os.fchmod(os.open(path, os.O_RDONLY), 0o777))
    attempt("chown", lambda: os.chown(path, os.getuid(), -1))
    attempt("utime", lambda: os.utime(path))
    attempt("setxattr", lambda: os.setxattr(path, "user.x", b"x"))
attempt("device", lambda: os.mknod("disk", 0o60666, os.makedev(254, 0)))
""",
    )
    after = (place / "file").stat()
    assert (place / "file").read_text() == "before"
    assert (after.st_mode, after.st_mtime_ns, after.st_uid) == (before.st_mode, before.st_mtime_ns, before.st_uid)
    assert [path.name for path in place.iterdir()] == ["file"]
    (place / "file").unlink()
    place.rmdir()


def test_the_environment_is_not_handed_on(box):
    assert os.environ["ASTUNE_TEST_SECRET"] == "do-not-tell"
    seen = json.loads(box.run("import json, os; print(json.dumps(dict(os.environ)))").stdout)
    assert "do-not-tell" not in str(seen)
    allowed = "PATH LANG USER OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS HOME TMPDIR PWD LC_CTYPE OLDPWD"
    assert set(seen) <= set(allowed.split())


def test_a_fork_bomb_stays_within_the_limit_and_ends_with_the_call(box, running):
    result = box.run(
        """
import os, sys, time
alive = 1
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        alive += 1
except OSError as full:
    print(alive, type(full).__name__)
"""
    )
    alive, error = result.stdout.split()
    assert error in ("BlockingIOError", "PermissionError")
    limit = box.sandbox.config.processes
    assert int(alive) == (1 if box.backend == "zygote-landlock" else limit)

    started = time.monotonic()
    bomb = box.run("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", timeout_s=1)
    assert bomb.ended_by == "timeout"
    assert time.monotonic() - started < 15
    assert box.run("print('fine')").stdout == "fine\n"


def test_a_bomb_of_threads_stays_within_the_limit(box):
    result = box.run(
        """
import threading, time
threading.stack_size(65536)
alive = 1
try:
    while alive < 1000:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        alive += 1
except RuntimeError:
    pass
print(alive, flush=True)
import os; os._exit(0)
"""
    )
    assert int(result.stdout) == (1 if box.backend == "zygote-landlock" else box.sandbox.config.processes)


def test_processes_cannot_be_traced_read_or_signalled(box, victim):
    attack(
        box,
        f"""
import fcntl, resource, signal
x86 = os.uname().machine == "x86_64"
class Vec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(64)
mine, theirs = Vec(ctypes.addressof(buffer), 64), Vec(0x400000, 64)
for process in ({victim.pid}, {os.getpid()}, 1, os.getppid()):
    attempt("ptrace attach", lambda: syscall(101 if x86 else 117, 16, process, 0, 0))
    attempt("ptrace seize", lambda: syscall(101 if x86 else 117, 0x4206, process, 0, 0))
    vectors = ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0
    attempt("vm read", lambda: syscall(310 if x86 else 270, process, *vectors))
    attempt("vm write", lambda: syscall(311 if x86 else 271, process, *vectors))
    attempt("pidfd_getfd", lambda: syscall(438, os.pidfd_open(process), 0, 0))
    attempt("limits", lambda: resource.prlimit(process, resource.RLIMIT_CPU, (1, 1)))
    attempt("affinity", lambda: os.sched_setaffinity(process, {{0}}))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, process, 19))
attempt("traceme", lambda: syscall(101 if x86 else 117, 0, 0, 0, 0))
for process in ({victim.pid}, {os.getpid()}):
    attempt("kill", lambda: os.kill(process, signal.SIGKILL))
    attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(process), signal.SIGKILL))
    attempt("queue", lambda: syscall(129 if x86 else 138, process, 9, 0))
def by_owner():
    read, write = os.pipe()
    fcntl.fcntl(read, fcntl.F_SETOWN, {victim.pid})
    fcntl.fcntl(read, 10, signal.SIGKILL)
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
    os.write(write, b"x")
attempt("signal by owner of a pipe", by_owner)
""",
    )
    assert victim.poll() is None


def test_the_parent_survives_all_signals(box):
    for code in (
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal; os.kill(1, signal.SIGKILL)",
        "import os, signal; os.kill(-1, signal.SIGKILL)",
        "import os, signal; os.killpg(0, signal.SIGKILL)",
        "import os, signal; os.kill(1, signal.SIGSTOP); os.kill(1, signal.SIGTERM)",
        "import os, signal\nfor number in signal.valid_signals():\n"
        "    try: os.kill(1, number)\n    except OSError: pass",
    ):
        result = box.run(code)
        assert result.ended_by in ("exit", "memory", "killed"), (code, result)
        assert box.run("print('fine')").stdout == "fine\n"


def test_a_call_that_ends_leaves_no_process_behind(box, running):
    marker = f"left-behind-{uuid.uuid4().hex}"
    mine = subprocess.Popen(["sh", "-c", "sleep 60; :", marker])
    eventually(lambda: running(marker), "a process that the search can find")
    mine.kill()
    mine.wait()
    result = box.run(
        f"""
import os, time
read, write = os.pipe()
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, b"x")
            os.execv("/bin/sh", ["sh", "-c", "while :; do sleep 60; done", {marker!r}])
        os._exit(0)
    os.read(read, 1)
    print("started")
except PermissionError:
    print("refused")
"""
    )
    assert result.stdout == ("refused\n" if box.backend == "zygote-landlock" else "started\n")
    assert result.ended_by == "exit"
    assert running(marker) == []


_NUMBERS = {  # x86-64, aarch64
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "userfaultfd": (323, 282),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "clone3": (435, 435),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "init_module": (175, 105),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "personality": (135, 92),
    "seccomp": (317, 277),
    "io_setup": (206, 0),
    "splice": (275, 76),
    "vmsplice": (278, 75),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "setuid": (105, 146),
    "setdomainname": (171, 162),
    "of a kernel to come": (999, 999),
}


def test_system_calls_that_code_does_not_need_do_not_exist(box):
    column = ["x86_64", "aarch64"].index(platform.machine())
    numbers = {name: pair[column] for name, pair in _NUMBERS.items()}
    result = attack(
        box,
        f"""
for name, number in {numbers!r}.items():
    try:
        print(f"REACHED {{name}}: {{syscall(number, 0, 0, 0, 0, 0)}}")
    except OSError as refusal:
        print(name, "refused" if refusal.errno in (errno.ENOSYS, errno.EPERM) else f"REACHED, {{refusal}}")
for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
    attempt(f"clone {{flag:#x}}", lambda: syscall({(56, 220)[column]}, flag | 17, 0, 0, 0, 0) or os._exit(0))
attempt("terminal", lambda: __import__("fcntl").ioctl(0, 0x5412, b"x"))
attempt("pdeathsig", lambda: 1 / (libc.prctl(1, 0, 0, 0, 0) + 1))
""",
    )
    assert result.stdout.count("refused") == len(numbers) + 9


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the 32-bit interfaces are x86's")
def test_the_other_interfaces_of_the_processor_are_closed(box):
    attack(box, 'attempt("x32 getpid", lambda: syscall(0x40000000 + 39))')
    into_32_bit = bytes.fromhex("b814000000cd80c3")  # mov eax, 20 (getpid); int 0x80; ret
    result = box.run(
        f"""
import ctypes, mmap
page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
page.write({into_32_bit!r})
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print("REACHED", call())
"""
    )
    assert result.ended_by == "killed"
    assert "REACHED" not in result.stdout


def test_programs_cannot_be_written_and_run(box):
    attack(
        box,
        """
open("program", "w").write("#!/bin/sh\\necho REACHED\\n")
try:
    os.chmod("program", 0o755)
except PermissionError:
    pass
attempt("exec", lambda: os.execv("./program", ["program"]))
""",
    )


def test_no_inherited_descriptor_lets_code_speak_for_the_sandbox(box):
    forged = json.dumps({"stopped": "", "status": 0})
    result = box.run(
        f"""
import os, sys
seen = []
for descriptor in range(0, 1024):
    try:
        os.fstat(descriptor)
    except OSError:
        continue
    seen.append(descriptor)
print(seen, flush=True)
for descriptor in range(3, 1024):
    for text in ({forged!r}, "ready", '{{"failed": "x"}}'):
        try:
            os.write(descriptor, text.encode())
            os.sendto
        except OSError:
            pass
print({forged!r})
os._exit(7)
"""
    )
    lines = result.stdout.splitlines()
    assert set(json.loads(lines[0])) <= {0, 1, 2}
    assert lines[1:] == [forged]
    assert (result.returncode, result.ended_by) == (7, "exit")


def test_a_call_finds_nothing_of_the_calls_before(box):
    secret = uuid.uuid4().hex
    box.run(f"marker = '{secret}'; open('kept', 'w').write(marker); import builtins; builtins.kept = marker")
    result = box.run(
        f"""
import builtins, gc, os
half = {secret[:16]!r}
known = [text for text in gc.get_objects() if isinstance(text, str) and text.startswith(half) and len(text) > 16]
print(os.listdir("."), hasattr(builtins, "kept"), known)
"""
    )
    assert result.stdout == "[] False []\n"


def test_the_scratch_folder_cannot_outgrow_memory(box):
    result = box.run(
        """
try:
    for number in range(100):
        with open(f"file{number}", "wb") as file:
            for _ in range(32):
                file.write(bytes(1 << 20))
    print("REACHED")
except OSError as full:
    print(full.errno)
"""
    )
    assert result.stdout.strip() == "28" or result.ended_by == "memory"  # no space left


@pytest.mark.slow
def test_folders_and_empty_files_are_bounded_too(any_box):
    result = any_box.run(
        """
import os, time
try:
    for number in range(40_000):
        os.close(os.open(f"file{number}", os.O_CREAT | os.O_WRONLY))
    time.sleep(10)
    print("REACHED")
except OSError as full:
    print(full.errno)
"""
    )
    assert result.stdout.strip() == "28" or result.ended_by == "memory"
    deep = any_box.run("import os, time\nfor _ in range(400): os.mkdir('d'); os.chdir('d')\ntime.sleep(0.5)")
    assert (deep.ended_by, deep.stderr) in (("memory", ""), ("exit", ""))  # a file system of its own may be deep


@pytest.mark.skipif(os.geteuid() == 0, reason="root enters every folder")
def test_a_folder_that_nobody_may_list_hides_nothing(any_box):
    result = any_box.run("import os, time; os.mkdir('closed', 0o300); time.sleep(1)")
    assert result.ended_by == ("memory" if any_box.backend in ("zygote-landlock", "rlimits") else "exit")


SHARED_MEMORY = """
import mmap, os, time
for _ in range(9):
    if os.fork() == 0:
        shared = mmap.mmap(-1, 200 << 20)
        for page in range(0, 200 << 20, 4096):
            shared[page] = 1
        shared.madvise(mmap.MADV_DONTNEED)
        print("REACHED", flush=True)
        time.sleep(60)
time.sleep(5)
"""


@pytest.mark.slow
def test_memory_that_no_process_is_charged_for_cannot_be_had(box):
    if box.backend != "zygote-landlock":
        result = box.run(SHARED_MEMORY)
        assert "REACHED" not in result.stdout
        assert result.stderr.count("PermissionError") == 9
    result = box.run(
        """
import mmap, os
for name in ("/dev/zero", "/dev/full", "/dev/null"):
    try:
        file = os.open(name, os.O_RDONLY)
        mmap.mmap(file, 1 << 20, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        print("REACHED", name)
    except OSError:
        pass
try:
    mmap.mmap(-1, 1 << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
    print("REACHED huge pages")
except OSError:
    pass
with open("file", "wb+") as file:
    file.truncate(4096)
    shared = mmap.mmap(file.fileno(), 4096)
    shared[:5] = b"works"
    print(shared[:5].decode())
"""
    )
    assert (result.stdout, result.stderr) == ("works\n", "")


@pytest.mark.slow
def test_the_kernel_ends_a_call_before_anybody_else_where_memory_runs_out(any_box):
    """Seen from outside: the score of the process that sleeps inside."""
    before, began = _scores(), set[int]()

    def seen() -> bool:
        began.update(score for pid, score in _scores().items() if pid not in before)
        return 1000 in began

    for seconds in (3, 12):  # until it is seen while it sleeps
        with ThreadPoolExecutor() as pool:
            call = pool.submit(any_box.run, f"import time; time.sleep({seconds})")
            eventually(lambda call=call: seen() or call.done(), "a process that is ended first")
            assert call.result().ended_by == "exit"
        if 1000 in began:
            break
    assert 1000 in began
    assert int(Path("/proc/self/oom_score_adj").read_text()) < 1000


def _scores() -> dict[int, int]:
    """Those of all processes below this one."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError):
            found[process.pid] = int(Path(f"/proc/{process.pid}/oom_score_adj").read_text())
    return found


@pytest.mark.slow
def test_a_lock_on_a_common_file_tells_other_calls_nothing(box):
    ask = """
import fcntl, os, sys, time
file = os.open(os.__file__, os.O_RDONLY)
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    print("granted", time.monotonic(), flush=True)
except OSError as told:
    print("REACHED", told)
"""

    def moment(said: str) -> float:
        assert re.fullmatch(r"granted [\d.]+\n", said), said
        return float(said.split()[1])

    for seconds in (1, 2, 4, 8):  # until one asked while another held it
        with ThreadPoolExecutor() as pool:
            holding = pool.submit(box.run, f"{ask}time.sleep({seconds})", 60)
            moments = [moment(box.run(ask).stdout)]
            while not holding.done():
                moments.append(moment(box.run(ask).stdout))
            held_from = moment(holding.result().stdout)
        if any(held_from < one < held_from + seconds for one in moments):
            return
    pytest.fail("no call asked while another held the lock")


def test_a_database_in_the_scratch_folder_works(any_box):
    result = any_box.run(
        """
import sqlite3
for mode in ("delete", "wal"):
    with sqlite3.connect(f"{mode}.db") as database:
        print(database.execute(f"pragma journal_mode={mode}").fetchone()[0])
        database.execute("create table t (x)")
        database.execute("insert into t values (42)")
    print(sqlite3.connect(f"{mode}.db").execute("select x from t").fetchone()[0])
"""
    )
    assert (result.stdout, result.stderr) == ("delete\n42\nwal\n42\n", "")


IN_A_PROJECT = """
import asyncio, sys
from astune.sandbox import Sandbox
async def main():
    async with Sandbox.open() as sandbox:
        print(await sandbox.run(f"import sys; print(sys.prefix); print(open({sys.argv[1]!r}).read())"))
asyncio.run(main())
"""


@pytest.mark.slow
def test_a_project_that_python_was_installed_into_is_not_read(box, tmp_path):
    """`python -m venv .` makes the project's folder, with all that lies there, the interpreter's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    answers = tmp_path / "answers.jsonl"
    answers.write_text("the answer is 42")
    paths = os.pathsep.join([str(ROOT), *site.getsitepackages()])
    done = subprocess.run(
        [tmp_path / "bin" / "python", "-c", IN_A_PROJECT, answers],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path) in done.stdout
    assert "FileNotFoundError" in done.stdout or "PermissionError" in done.stdout
    assert "42" not in done.stdout.replace(str(tmp_path), "")
